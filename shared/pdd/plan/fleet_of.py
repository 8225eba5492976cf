"""From a scenario to a simulated fleet: what a chip and a model cost, what fits in memory, what lies between the sites, who dies when."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import TypeVar

from ..core.chips import CHIPS
from ..core.cost import COSTS, EngineCost
from ..core.ids import Role
from ..core.llms import LLMS, Llm
from ..core.roles.router import Router
from ..core.roofline import Reach, cache_tokens, engine_cost
from ..core.routing import RoutingSettings
from ..core.singular import SingularSettings
from ..core.timeouts import TimeOuts
from ..sim.kv import Sizes
from ..sim.scenario import Scenario, ScenarioError, Workers
from .fleet_parts import PAGE_TOKENS, FleetPlan, LinePlan, WorkerPlan, limits_of
from .other_routers import HitThresholdRouter, LowHitsEndOnRelay
from .simulated import STARTING_S, SimFleet

MOST_PAGES = (
    60_000  # 3.8 million tokens: more is seldom reused within a run, and each page costs this process about a kilobyte
)
GBIT = 1e9 / 8
REACH = {field.name for field in fields(Reach)}
COST = {field.name for field in fields(EngineCost)}
ROUTERS: dict[str, type[HitThresholdRouter]] = {
    "hit_threshold": HitThresholdRouter,
    "low_hits_on_relay": LowHitsEndOnRelay,
}
T = TypeVar("T")


def fleet_plan(scenario: Scenario) -> FleetPlan:
    """Raises ScenarioError on names that do not exist and on models that do not fit."""
    llm = _known(LLMS, scenario.model, "model")
    grain = scenario.load.hits.grain if scenario.load.hits else 1
    fleet, line = scenario.fleet, scenario.line
    workers = {
        role: _worker_plan(table, llm, scenario.context_tokens, role, grain)
        for role, table in ((Role.PREFILL, fleet.prefill), (Role.RELAY, fleet.relay), (Role.MAIN, fleet.main))
        if table.workers
    }
    token_bytes = llm.kv_bytes * grain / line.compression
    lines = LinePlan(
        bytes_per_s=line.gbit_s * GBIT,
        rtt_s=line.rtt_ms / 1000,
        flow_bytes_per_s=line.flow_gbit_s * GBIT,
        order=line.order,
        flows=line.flows,
        near_bytes_per_s=line.near_gbit_s * GBIT,
    )
    return FleetPlan(
        workers=workers,
        line=lines,
        kv_bytes=llm.kv_bytes * grain,
        sizes=Sizes(token_bytes, llm.state_bytes / line.compression, line.streaming),
        routing=_routing(scenario, workers, lines, grain),
        timeouts=_settings(TimeOuts, scenario.timeouts, "timeouts"),
        singular=_settings(SingularSettings, scenario.singular, "singular"),
        policy=fleet.policy,
        relay_bound=fleet.relay_bound,
        same_site=fleet.same_site,
        max_inflight=fleet.max_inflight,
        router=_router(scenario),
        grain=grain,
    )


def fleet_of(scenario: Scenario, seed: int, title: str = "") -> SimFleet:
    """With the scenario's load and crashes. Raises ScenarioError."""
    fleet = SimFleet(fleet_plan(scenario), scenario.load, title or scenario.name, seed)
    for crash in scenario.crashes:
        _known(fleet.workers, crash.worker, "crashes.worker")
        fleet.world.call_later(STARTING_S + crash.at_s, partial(fleet.kill, crash.worker))
        if crash.back_s:
            fleet.world.call_later(STARTING_S + crash.at_s + crash.back_s, partial(fleet.revive, crash.worker))
    return fleet


def _router(scenario: Scenario) -> Callable[..., Router]:
    if scenario.fleet.router == "ours":
        return Router
    return partial(_known(ROUTERS, scenario.fleet.router, "fleet.router"), hit_threshold=scenario.fleet.hit_threshold)


def _worker_plan(table: Workers, llm: Llm, context_tokens: int, role: Role, grain: int) -> WorkerPlan:
    if table.chip in COSTS:
        cost, pages = COSTS[table.chip], MOST_PAGES
    else:
        chip = _known(CHIPS, table.chip, f"fleet.{role.value}.chip")
        reach = replace(Reach(), **{key: value for key, value in table.cost.items() if key in REACH})
        cost = engine_cost(chip, llm, table.cards, reach)
        pages = min(MOST_PAGES, cache_tokens(chip, llm, table.cards) // PAGE_TOKENS)
        if pages * PAGE_TOKENS < context_tokens:
            raise ScenarioError(
                f"{llm.name} and one request of {context_tokens} tokens do not fit in {table.cards} {chip.name}"
            )
    if unknown := set(table.cost) - REACH - COST:
        raise ScenarioError(
            f"fleet.{role.value}.cost: no {', '.join(sorted(unknown))}; there are {', '.join(sorted(REACH | COST))}"
        )
    cost = replace(cost, **{key: value for key, value in table.cost.items() if key in COST})
    limits = limits_of(
        (table.pages or pages) // grain, table.max_sequences, table.chunk_tokens // grain, context_tokens
    )
    return WorkerPlan(table.workers, cost, limits)


def _routing(scenario: Scenario, workers: dict[Role, WorkerPlan], line: LinePlan, grain: int) -> RoutingSettings:
    """Priors from the plan itself, as an operator would set them; the scenario has the last word."""
    p, m = workers.get(Role.PREFILL), workers[Role.MAIN]
    priors = {
        "prefill_tokens_per_s": (p or m).cost.prefill_tokens_per_s / grain,
        "line_bytes_per_s": line.bytes_per_s,
        "near_bytes_per_s": line.near_bytes_per_s,
        "line_rtt_s": line.rtt_s,
        "step_s": m.cost.seconds_of(0, 0.0, m.limits.max_sequences // 2, 0),
        "chunk_tokens": (p or m).limits.chunk_tokens,
    }
    wanted = scenario.routing
    if "main_alone_tokens" in wanted:
        wanted = wanted | {"main_alone_tokens": wanted["main_alone_tokens"] / grain}
    return _settings(RoutingSettings, priors | wanted, "routing")


def _known(table: dict[str, T], name: str, where: str) -> T:
    if name not in table:
        raise ScenarioError(f"{where}: no {name!r}; there are {', '.join(table)}")
    return table[name]


def _settings(kind: type[T], values: dict[str, float], where: str) -> T:
    """Integers where the setting is one."""
    names = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := set(values) - set(names):
        raise ScenarioError(f"{where}: no {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    typed = {name: int(value) if names[name].type in (int, "int") else value for name, value in values.items()}
    try:
        return kind(**typed)
    except ValueError as error:
        raise ScenarioError(f"{where}: {error}") from error
