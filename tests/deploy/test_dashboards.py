"""Every query of the dashboard and of the alerts asks for metrics and labels that the code has; and the files are what they claim."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.grafana import dashboard
from pdd.core.names import METRICS, Kind

INFRA = Path(__file__).resolve().parents[2] / "infra"
PROMETHEUS_OWN = {"up"}
SCRAPED = {"le", "job", "instance", "service"}  # what Prometheus and its scrape configuration add
SUFFIXES = ("_bucket", "_sum", "_count")
NAME = re.compile(r"\b(pdd_[a-z0-9_]+|up)\b(?:\{(?P<where>[^}]*)\})?")
BY = re.compile(r"\bby \((?P<labels>[^)]*)\)")


def queries() -> Iterator[Any]:
    for panel in json.loads(dashboard.OUT.read_text())["panels"]:
        for target in panel.get("targets", []):
            yield pytest.param(target["expr"], id=f"{panel['title']}: {target['refId']}")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((INFRA / "prometheus" / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def metric_of(name: str) -> str:
    for suffix in SUFFIXES:
        base = name.removesuffix(suffix)
        if base in METRICS and METRICS[base].kind is Kind.HISTOGRAM:
            return base
    return name


def check(query: str) -> None:
    found = list(NAME.finditer(query))
    assert found, f"{query} asks for nothing of ours"
    grouped = {label.strip() for match in BY.finditer(query) for label in match["labels"].split(",")}
    for match in found:
        name = match[1]
        if name in PROMETHEUS_OWN:
            continue
        metric = metric_of(name)
        assert metric in METRICS, f"{name} does not exist"
        if METRICS[metric].kind is Kind.HISTOGRAM:
            assert name != metric, f"{name} is a histogram: ask for its buckets, sum or count"
        named = {label for label, _ in re.findall(r'(\w+)\s*[=!]~?\s*"([^"]*)"', match["where"] or "")}
        known = set(METRICS[metric].labels) | SCRAPED
        assert named | grouped <= known, f"{name} has no label {sorted((named | grouped) - known)}"


@pytest.mark.parametrize("query", list(queries()))
def test_a_panel_asks_for_what_exists(query: str) -> None:
    check(query)


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_exists_and_says_what_to_do(rule: dict[str, Any]) -> None:
    check(rule["expr"])
    assert rule["annotations"]["summary"] and rule["annotations"]["action"]
    assert rule["labels"]["severity"] in ("page", "warn", "info")


def test_the_dashboard_is_what_its_source_writes() -> None:
    assert dashboard.OUT.read_text() == dashboard.text(), "run: python3 infra/grafana/dashboard.py"


def test_every_metric_stands_on_the_dashboard() -> None:
    """Whoever adds a metric decides where an operator sees it."""
    asked = {metric_of(match[1]) for panel in queries() for match in NAME.finditer(panel.values[0])}
    assert sorted(set(METRICS) - asked) == []


def test_panels_do_not_overlap_and_have_numbers_of_their_own() -> None:
    panels = json.loads(dashboard.OUT.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24 and not cells & taken
        taken |= cells


def test_the_panels_data_sources_are_provisioned() -> None:
    made = yaml.safe_load((INFRA / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    asked = {
        target["datasource"]["uid"]
        for panel in json.loads(dashboard.OUT.read_text())["panels"]
        for target in panel.get("targets", [])
    }
    assert asked <= {source["uid"] for source in made}
