"""One thing changed at a time: line rate, round trip, hit rate, length of answers. Where the relay pays, and where it stops."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sim.report.plot import line_plot
from ..sim.scenario import Scenario, ScenarioError, variant
from .capacity import Point, load_of, under
from .compare import NO_RELAY

FACTORS: dict[str, Sequence[float]] = {
    "line": (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0),
    "rtt": (0.5, 1.0, 2.0, 5.0, 10.0),
    "hit": (0.0, 0.25, 0.5, 0.75, 1.0),
    "outputs": (0.1, 0.25, 0.5, 1.0),
}
UNITS = {"line": "Gbit/s", "rtt": "round trip, ms", "hit": "mean hit rate", "outputs": "mean outputs"}
RELAY_PAYS = 0.05  # of the P99: less is noise


@dataclass(frozen=True, slots=True)
class Spot:
    """One value of what is varied, with and without a relay."""

    at: float
    relayed: Point
    plain: Point


def changed(scenario: Scenario, what: str, factor: float) -> tuple[float, Scenario]:
    """(the value, the scenario with it). `hit`: the factor mixes between no hits at all and the scenario's own."""
    load, line = scenario.load, scenario.line
    if what == "line":
        value = line.gbit_s * factor
        return value, variant(scenario, {"line": {"gbit_s": value}})
    if what == "rtt":
        value = line.rtt_ms * factor
        return value, variant(scenario, {"line": {"rtt_ms": value}})
    if load.hits is None:
        raise ScenarioError(f"{scenario.name}: {what} can be varied where the load is [load.hits]")
    if what == "hit":
        mean = load.hits.alpha / (load.hits.alpha + load.hits.beta)
        changes = {"low": load.hits.low * factor, "span": load.hits.span * factor}
        return factor * (load.hits.low + load.hits.span * mean), variant(scenario, {"load": {"hits": changes}})
    outputs = load.hits.outputs
    scaled = {
        "median": outputs.median * factor,
        "quantiles": [(share, max(1.0, value * factor)) for share, value in outputs.quantiles],
    }
    return outputs.mean() * factor, variant(scenario, {"load": {"hits": {"outputs": scaled}}})


def spot(scenario: Scenario, what: str, factor: float, seed: int, base: Path) -> Spot:
    value, one = changed(scenario, what, factor)
    load = load_of(one)
    return Spot(value, under(one, load, seed, base), under(variant(one, NO_RELAY), load, seed, base))


def p99(point: Point, key: str = "second_token_s") -> float:
    values: dict[str, float] = point.found[key]
    return values.get("p99", float("nan"))


def pays_until(spots: Sequence[Spot]) -> float | None:
    """The last value, in the order given, at which the relay shortens the P99 to the second token; None: at none."""
    paying = [one.at for one in spots if p99(one.relayed) < (1 - RELAY_PAYS) * p99(one.plain)]
    return paying[-1] if paying else None


def plot(what: str, spots: Sequence[Spot]) -> str:
    lines = {
        "with relay": [(one.at, p99(one.relayed)) for one in spots],
        "without": [(one.at, p99(one.plain)) for one in spots],
        "with relay, largest gap": [(one.at, p99(one.relayed, "largest_gap_s")) for one in spots],
    }
    return line_plot(
        f"P99 to the second token over {UNITS[what]}",
        lines,
        x=UNITS[what],
        y="seconds",
        log_x=what in ("line", "rtt"),
        mark=True,
    )


def as_data(found: Mapping[str, Sequence[Spot]]) -> dict[str, Any]:
    return {
        what: {
            "unit": UNITS[what],
            "relay_pays_until": pays_until(spots),
            "spots": [
                {
                    "at": one.at,
                    "relayed": {
                        key: one.relayed.found[key]
                        for key in ("second_token_s", "largest_gap_s", "shares", "routes", "line")
                    },
                    "plain": {key: one.plain.found[key] for key in ("second_token_s", "largest_gap_s", "line")},
                }
                for one in spots
            ],
        }
        for what, spots in found.items()
    }
