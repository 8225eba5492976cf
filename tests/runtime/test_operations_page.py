"""docs/operations.md names everything an operator can set or see, and nothing that is not there."""

import re
from pathlib import Path

from pdd.core.names import METRICS, SPANS
from pdd.runtime.settings import known_names

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
ROWS = set(re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE))


def test_every_setting_has_a_row_and_every_row_a_setting() -> None:
    assert sorted(row for row in ROWS if row.startswith("PDD_")) == known_names()


def test_every_metric_has_a_row_and_every_row_a_metric() -> None:
    assert sorted(row for row in ROWS if row.startswith("pdd_")) == sorted(METRICS)


def test_every_span_has_a_row() -> None:
    assert [span for span in SPANS if span not in ROWS] == []


def test_metrics_that_the_page_speaks_of_exist() -> None:
    spoken_of = set(re.findall(r"`(pdd_[a-z0-9_]+)", PAGE))
    assert sorted(spoken_of - set(METRICS)) == []
