"""Load doubles, workers join: how long until clients are served as before."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.ids import Role
from ..sim.report import Run
from ..sim.report.plot import line_plot
from ..sim.report.summary import percentile
from ..sim.scenario import Scenario, variant
from ..sim.workload import Session
from .fleet_of import fleet_of
from .simulated import LETTERS, STARTING_S, SimFleet

WINDOW_S = 10.0
AS_BEFORE = 1.5  # times the P90 before


@dataclass(frozen=True, slots=True)
class Surge:
    """From `surge_at_s` on `factor` times as many requests; at `join_at_s` that much of each role's workers more."""

    surge_at_s: float = 60.0
    join_at_s: float = 90.0
    factor: float = 2.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """`curve`: (time, P90 to the second token of the requests begun in the window before). `recovered_s` counts from the joining."""

    curve: list[tuple[float, float]]
    before_s: float
    worst_s: float
    first_work_s: float | None
    recovered_s: float | None


def surge(scenario: Scenario, given: Surge, seed: int, base: Path, *, join: bool = True) -> Recovery:
    """An open loop. `first_work_s`: from joining until a new worker writes or computes for the first time."""
    changed = variant(scenario, {"load": {"rate_per_s": scenario.load.rate_per_s * given.factor, "warmup_s": 0.0}})
    fleet = fleet_of(changed, seed)
    timed = fleet.load.timed
    fleet.starts = lambda: _slower_before(timed(seed, base), given)
    if join:
        fleet.world.call_later(STARTING_S + given.join_at_s, lambda: _join(fleet, given.factor))
    run = fleet.run(base, drain_s=60.0)
    return _recovery(run, given, _first_work(fleet, given))


def _slower_before(sessions: Iterator[tuple[float, Session]], given: Surge) -> Iterator[tuple[float, Session]]:
    """The surge's pace, stretched to the usual one before the surge."""
    stretched_s = given.surge_at_s / given.factor
    for when, session in sessions:
        yield (when * given.factor if when < stretched_s else when - stretched_s + given.surge_at_s), session


def _join(fleet: SimFleet, factor: float) -> None:
    for role, workers in fleet.plan.workers.items():
        for number in range(workers.count + 1, round(workers.count * factor) + 1):
            fleet.boot(role, f"{LETTERS[role]}{number}")


def _first_work(fleet: SimFleet, given: Surge) -> float | None:
    counts = {role: workers.count for role, workers in fleet.plan.workers.items()}
    begun = [
        worker.engine.first_step_s
        for name, worker in fleet.workers.items()
        if int(name[1:]) > counts[Role(worker.me.role)] and worker.engine.first_step_s is not None
    ]
    return min(begun) - STARTING_S - given.join_at_s if begun else None


def _recovery(run: Run, given: Surge, first_work_s: float | None) -> Recovery:
    seen = [(r.intended_s, second) for r in run.records if (second := r.second_token_s) is not None]
    end = max(when for when, _ in seen)
    times = [WINDOW_S * i / 2 for i in range(2, int(2 * end / WINDOW_S))]
    curve = [
        (t, value) for t in times if (value := _p90([s for when, s in seen if t - WINDOW_S <= when < t])) is not None
    ]
    before = _p90([s for when, s in seen if WINDOW_S <= when < given.surge_at_s]) or 0.0
    after = [(t, value) for t, value in curve if t > given.join_at_s]
    late = [t for t, value in after if value > AS_BEFORE * before]
    recovered = None if late and late[-1] == after[-1][0] else (late[-1] if late else given.join_at_s) - given.join_at_s
    return Recovery(curve, before, max(value for _, value in curve), first_work_s, recovered)


def _p90(values: Sequence[float]) -> float | None:
    return percentile(sorted(values), 0.9) if values else None


def plot(joined: Recovery, alone: Recovery) -> str:
    return line_plot(
        "P90 to the second token while the load doubles",
        {"workers join": joined.curve, "nobody joins": alone.curve},
        x="seconds",
        y="seconds",
    )


def as_data(joined: Recovery, alone: Recovery) -> dict[str, Any]:
    return {
        name: {
            "before_s": one.before_s,
            "worst_s": one.worst_s,
            "first_work_s": one.first_work_s,
            "recovered_s": one.recovered_s,
        }
        for name, one in (("workers join", joined), ("nobody joins", alone))
    }
