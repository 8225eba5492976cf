"""How fast the simulator is on one core, and where its time goes."""

import cProfile
import io
import pstats
import time
from pathlib import Path
from typing import Any

from pdd.plan.fleet_of import fleet_of
from pdd.plan.simulated import SimFleet
from pdd.sim.scenario import Scenario, variant

SHOWN = 25


def measured(scenario: Scenario, seconds: float, seed: int, base: Path) -> dict[str, Any]:
    """Processor time, not wall time: other programs on the machine do not count."""
    fleet = _fleet(scenario, seconds, seed)
    begun = time.process_time()
    run = fleet.run(base, drain_s=0.0)
    spent = time.process_time() - begun
    tokens = sum(record.outputs for record in run.records)
    steps = sum(worker.engine.steps for worker in fleet.workers.values())
    # Without strides and joint frames an output is one event at its worker, one at the router and one at its client.
    single = fleet.events + 3 * tokens
    return {
        "workers": len(fleet.workers),
        "simulated_s": run.seconds,
        "cpu_s": spent,
        "times_real": run.seconds / spent,
        "hour_cpu_minutes": 60 * spent / run.seconds,
        "requests": len(run.records),
        "outputs": tokens,
        "engine_steps": steps,
        "machine_events": fleet.events,
        "machine_events_per_s": fleet.events / spent,
        "outputs_per_s": tokens / spent,
        "single_events_per_s": single / spent,
    }


def profiled(scenario: Scenario, seconds: float, seed: int, base: Path) -> str:
    fleet = _fleet(scenario, seconds, seed)
    profile = cProfile.Profile()
    profile.enable()
    fleet.run(base, drain_s=0.0)
    profile.disable()
    out = io.StringIO()
    pstats.Stats(profile, stream=out).strip_dirs().sort_stats("tottime").print_stats(SHOWN)
    return out.getvalue()


def _fleet(scenario: Scenario, seconds: float, seed: int) -> SimFleet:
    changed = variant(scenario, {"load": {"duration_s": seconds, "warmup_s": 0.0}})
    return fleet_of(changed, seed)
