"""Small simulated fleets for tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from pdd.core.cost import EngineCost
from pdd.core.ids import Role
from pdd.core.routing import RoutingSettings
from pdd.plan.fleet_parts import FleetPlan, LinePlan, WorkerPlan, limits_of
from pdd.plan.simulated import SimFleet
from pdd.sim.kv import Sizes
from pdd.sim.report import Run
from pdd.sim.scenario import Scenario, variant
from pdd.sim.workload import Load

HERE = Path(".")
SCENARIOS = Path(__file__).resolve().parents[2] / "loadgen" / "scenarios"
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


TINY = {
    "name": "tiny",
    "model": "qwen3-32b",
    "context_tokens": 12_000,
    "load": {
        "hits": {"context_tokens": 8192, "outputs": {"median": 60}},
        "rate_per_s": 6.0,
        "duration_s": 15.0,
        "warmup_s": 3.0,
    },
    "fleet": {
        "prefill": {
            "workers": 1,
            "chip": "H100",
            "cards": 2,
            "max_sequences": 64,
            "cost": {"prefill_tokens_per_s": 9000},
        },
        "relay": {"workers": 1, "chip": "H100", "cards": 2, "max_sequences": 32},
        "main": {"workers": 1, "chip": "H200", "cards": 2, "max_sequences": 32},
    },
    "line": {"gbit_s": 2.0},
    "sla": {"ttft_s": 1.5, "tpot_s": 0.05},
    "price": {"nodes": {"H100": 1.0, "H200": 1.25}, "line": 0.3},
}


def tiny(**changes: Any) -> Scenario:
    return variant(msgspec.convert(TINY, Scenario), changes)
