"""Crashes that a scenario names happen in its simulation, and cost its clients nothing but time."""

import pytest

from pdd.plan.fleet_of import fleet_of
from pdd.sim.report import summarize
from pdd.sim.scenario import ScenarioError
from tests.plan.fleets import HERE, tiny

WORKERS = {role: {"workers": 2} for role in ("prefill", "main")}


@pytest.mark.parametrize("back_s", [0.0, 4.0])
@pytest.mark.parametrize("worker", ["p1", "m2"])
def test_a_worker_dies_at_its_time_and_comes_back_at_its_time(worker: str, back_s: float) -> None:
    crash = {"worker": worker, "at_s": 6.0, "back_s": back_s}
    fleet = fleet_of(tiny(fleet=WORKERS, load={"rate_per_s": 4.0}, crashes=[crash]), 7)
    first = fleet.workers[worker]
    found = summarize(fleet.run(HERE))
    assert found["failed"] == 0 and found["replanned"] > 0
    assert not first.node.alive
    again = fleet.workers[worker]
    assert (again is not first and again.engine.steps > 0) == bool(back_s)


def test_a_crash_of_nobody_is_told() -> None:
    with pytest.raises(ScenarioError, match=r"crashes.worker: no 'x9'; there are p1, r1, m1"):
        fleet_of(tiny(crashes=[{"worker": "x9", "at_s": 1.0}]), 7)
