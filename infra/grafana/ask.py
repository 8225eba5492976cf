"""Asks the sites' Prometheus for what Grafana would ask for: every query of every panel of dashboards/pdd.json, over a stretch of time."""

import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).with_name("dashboards") / "pdd.json"
STEP_S = 5  # as often as a site's Prometheus looks
RATE_INTERVAL = "20s"  # what Grafana takes for $__rate_interval then: four looks
ASK_S = 10.0


@dataclass(frozen=True, slots=True)
class Series:
    """`points`: (seconds since the epoch, value)."""

    legend: str
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A panel and what there is to draw in it; a row of the dashboard has no unit."""

    title: str
    says: str
    unit: str
    series: tuple[Series, ...]


def ask(prometheus: Mapping[str, str], start_s: float, stop_s: float) -> list[Drawn]:
    """`prometheus`: the base URL of each data source. Raises OSError: nobody there, or a query that is refused."""
    return [_panel(panel, prometheus, start_s, stop_s) for panel in json.loads(DASHBOARD.read_text())["panels"]]


def _panel(panel: dict[str, Any], prometheus: Mapping[str, str], start_s: float, stop_s: float) -> Drawn:
    series = [
        Series(_legend(target["legendFormat"], found["metric"]), _points(found["values"]))
        for target in panel.get("targets", [])
        for found in _query(prometheus[target["datasource"]["uid"]], target["expr"], start_s, stop_s)
    ]
    unit = panel["fieldConfig"]["defaults"]["unit"] if "fieldConfig" in panel else ""
    return Drawn(panel["title"], panel.get("description", ""), unit, tuple(series))


def _query(base: str, expr: str, start_s: float, stop_s: float) -> list[dict[str, Any]]:
    asked = {"query": expr.replace("$__rate_interval", RATE_INTERVAL), "start": start_s, "end": stop_s, "step": STEP_S}
    nobody_between = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with nobody_between.open(f"{base}/api/v1/query_range?{urllib.parse.urlencode(asked)}", timeout=ASK_S) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def _legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), template)


def _points(values: list[tuple[float, str]]) -> tuple[tuple[float, float], ...]:
    """Without what is no number: a quantile of nothing."""
    points = ((at, float(value)) for at, value in values)
    return tuple((at, value) for at, value in points if math.isfinite(value))
