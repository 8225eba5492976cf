"""How many requests a second a fleet serves within its promise: bisection over simulated runs, all with the same random draws."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sim.report import summarize
from ..sim.scenario import Scenario, variant
from .fleet_of import fleet_plan
from .simulated import SimFleet
from .worth import Verdict, judge

DRAIN_S = 30.0  # after the last arrival; whoever has no second output by then has failed
UP, DOWN = 1.15, 0.8  # until the limit is between two runs


@dataclass(frozen=True, slots=True)
class Point:
    """One run at one rate."""

    rate_per_s: float
    verdict: Verdict
    found: dict[str, Any]
    counts: dict[str, dict[str, float]]


def at_rate(scenario: Scenario, rate_per_s: float, seed: int, base: Path) -> Point:
    changed = variant(scenario, {"load": {"rate_per_s": rate_per_s}})
    fleet = SimFleet(fleet_plan(changed), changed.load, scenario.name, seed)
    found = summarize(fleet.run(base, drain_s=DRAIN_S))
    counts = {
        "replans": fleet.tally.by("pdd_replans_total", "reason"),
        "ended_on_relay": fleet.tally.by("pdd_ended_on_relay_total", "reason"),
        "cuts": fleet.tally.by("pdd_cuts_total", "kind"),
        "handovers": fleet.tally.by("pdd_handovers_total", "kind"),
    }
    return Point(rate_per_s, judge(changed, found), found, counts)


def capacity(
    scenario: Scenario,
    seed: int,
    base: Path,
    *,
    first: float,
    precision: float = 0.02,
    known: Point | None = None,
) -> Point | None:
    """The fastest run that keeps the promise, to within `precision` of its rate; None where even a tenth of `first` breaks it.

    `known`: a run at `first`, if there is one already.
    """
    best: Point | None = None
    low, high, rate = 0.0, float("inf"), first
    while high - low > precision * rate:
        point = known if known and known.rate_per_s == rate else at_rate(scenario, rate, seed, base)
        if point.verdict.kept:
            low, best = rate, point
        else:
            high = rate
        if high == float("inf"):
            rate *= UP
        elif low == 0.0:
            rate *= DOWN
            if rate < first / 10:
                return None
        else:
            rate = (low + high) / 2
    return best
