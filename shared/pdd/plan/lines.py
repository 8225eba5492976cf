"""How wide a line each system needs: its P99 to the second token over narrower and narrower lines, under the same load."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..sim.report.plot import line_plot
from ..sim.scenario import Scenario, variant
from .capacity import Point, load_of, under
from .what_if import p99

FACTORS = (0.1, 0.25, 0.5, 1.0)
SAME = 1.05  # times the P99 over the whole line: less is noise


def spot(scenario: Scenario, factor: float, seed: int, base: Path) -> Point:
    changed = variant(scenario, {"line": {"gbit_s": scenario.line.gbit_s * factor}})
    return under(changed, load_of(changed), seed, base)


def needed(waits: Sequence[tuple[float, float]], allowed_s: float) -> float | None:
    """`waits`: (line, P99). The narrowest line that keeps what is allowed, as all wider ones do; None: not even the widest."""
    found = None
    for line, wait in sorted(waits, reverse=True):
        if not wait <= allowed_s:
            break
        found = line
    return found


def waits(scenario: Scenario, points: Sequence[Point]) -> list[tuple[float, float]]:
    """Of `points` over FACTORS. Requests without a second token count as having waited for ever."""
    return [
        (scenario.line.gbit_s * factor, float("inf") if point.found["failed"] else p99(point))
        for factor, point in zip(FACTORS, points, strict=True)
    ]


def plot(found: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    finite = {name: [spot for spot in spots if spot[1] < float("inf")] for name, spots in found.items()}
    return line_plot(
        "P99 to the second token over the line's rate",
        {name: spots for name, spots in finite.items() if spots},
        x="Gbit/s",
        y="seconds",
        log_x=True,
        mark=True,
    )


def as_data(
    found: Mapping[str, Sequence[tuple[float, float]]], points: Mapping[str, Sequence[Point]]
) -> dict[str, Any]:
    keys = ("requests", "failed", "second_token_s", "ttft_s", "shares", "routes", "hit", "line")
    return {
        name: [
            {"gbit_s": line, "p99_s": wait, "summary": {key: point.found[key] for key in keys}}
            for (line, wait), point in zip(spots, points[name], strict=True)
        ]
        for name, spots in found.items()
    }
