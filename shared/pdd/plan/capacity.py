"""How much load a fleet serves within its promise: bisection over simulated runs, all with the same random draws.

The load is requests (sessions) a second in an open loop, sessions at once in a closed one.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sim.report import summarize
from ..sim.report.summary import counted, spread
from ..sim.scenario import Scenario, variant
from .alone import alone_s
from .fleet_of import fleet_of
from .worth import Verdict, judge

DRAIN_S = 30.0  # after the last arrival; whoever has no second output by then has failed
UP, DOWN = 1.15, 0.8  # until the limit is between two runs


@dataclass(frozen=True, slots=True)
class Point:
    """One run under one load. `rate_per_s`: requests a second, as asked for where a request is a session, else as served."""

    load: float
    rate_per_s: float
    verdict: Verdict
    found: dict[str, Any]
    counts: dict[str, dict[str, float]]


def load_of(scenario: Scenario) -> float:
    return scenario.load.rate_per_s or float(scenario.load.at_once)


def under(scenario: Scenario, load: float, seed: int, base: Path) -> Point:
    """One run."""
    change = {"at_once": max(1, round(load))} if scenario.load.closed else {"rate_per_s": load}
    changed = variant(scenario, {"load": change})
    fleet = fleet_of(changed, seed)
    run = fleet.run(base, drain_s=DRAIN_S)
    found = summarize(run)
    found["alone_s"] = spread(alone_s(record, fleet.plan) for record in counted(run) if not record.error)
    counts = {
        "replans": fleet.tally.by("pdd_replans_total", "reason"),
        "ended_on_relay": fleet.tally.by("pdd_ended_on_relay_total", "reason"),
        "cuts": fleet.tally.by("pdd_cuts_total", "kind"),
        "handovers": fleet.tally.by("pdd_handovers_total", "kind"),
    }
    rate_per_s = load if scenario.load.hits and not scenario.load.closed else found["completed_per_s"]
    return Point(load, rate_per_s, judge(changed, found), found, counts)


def capacity(
    scenario: Scenario,
    seed: int,
    base: Path,
    *,
    first: float,
    precision: float = 0.02,
    known: Point | None = None,
) -> Point | None:
    """The most load that keeps the promise, to within `precision` of it; None where even a tenth of `first` breaks it.

    `known`: a run at `first`, if there is one already.
    """
    best: Point | None = None
    low, high, load = 0.0, float("inf"), first
    while high - low > precision * load:
        point = known if known and known.load == load else under(scenario, load, seed, base)
        if point.verdict.kept:
            low, best = load, point
        else:
            high = load
        if high == float("inf"):
            load *= UP
        elif low == 0.0:
            load *= DOWN
            if load < first / 10:
                return None
        else:
            load = (low + high) / 2
    return best
