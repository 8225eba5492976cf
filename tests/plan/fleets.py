"""Small simulated fleets for tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from pdd.core.cost import EngineCost
from pdd.core.ids import Role
from pdd.core.routing import RoutingSettings
from pdd.plan.simulated import FleetPlan, LinePlan, SimFleet, WorkerPlan, limits_of
from pdd.sim.kv import Sizes
from pdd.sim.report import Run
from pdd.sim.workload import Load

HERE = Path(".")
KV_BYTES = 1000
AGENTS = {
    "agent": {
        "kinds": 2,
        "system": {"median": 300},
        "first": {"median": 200, "sigma": 0.5},
        "added": {"median": 80, "sigma": 0.8},
        "outputs": {"median": 40, "sigma": 0.6, "most": 200},
        "turns": {"median": 4, "sigma": 0.4},
        "think_s": {"median": 1.0, "sigma": 0.5},
        "delegates": 0.2,
        "context_tokens": 4000,
    },
    "at_once": 6,
    "sessions": 14,
}


def load(table: dict[str, Any]) -> Load:
    return msgspec.convert(table, Load)


def fleet_plan(prefills: int = 2, relays: int = 1, mains: int = 2, **changes: Any) -> FleetPlan:
    cost = EngineCost(step_s=0.02, prefill_tokens_per_s=4000.0, attention_s_per_pair=1e-8, import_bytes_per_s=1e9)
    workers = {
        Role.PREFILL: WorkerPlan(prefills, cost, limits_of(400, 32, 256, 6000)),
        Role.RELAY: WorkerPlan(relays, cost, limits_of(400, 16, 256, 6000)),
        Role.MAIN: WorkerPlan(mains, cost, limits_of(400, 32, 256, 6000)),
    }
    routing = RoutingSettings(
        prefill_tokens_per_s=4000.0,
        line_bytes_per_s=2e5,
        near_bytes_per_s=1e9,
        line_rtt_s=0.05,
        step_s=0.02,
        host_price_s=1e6,
    )
    line = LinePlan(bytes_per_s=2e5, rtt_s=0.05, near_bytes_per_s=1e9)
    plan = FleetPlan(
        {role: one for role, one in workers.items() if one.count}, line, KV_BYTES, Sizes(KV_BYTES), routing
    )
    return replace(plan, **changes)


def simulated(plan: FleetPlan, table: dict[str, Any] | None = None, seed: int = 7, **more: Any) -> tuple[SimFleet, Run]:
    fleet = SimFleet(plan, load(table or AGENTS), "test", seed)
    return fleet, fleet.run(HERE, **more)


def times(run: Run) -> list[tuple[str, int, float | None, float | None, float | None]]:
    """What each request's client saw, in a fixed order."""
    return sorted((r.session, r.turn, r.first_s, r.second_s, r.last_s) for r in run.records)
