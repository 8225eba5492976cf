"""How many of each role a load needs, from sums alone: a first cut that simulation then corrects."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from ..core.cost import EngineCost
from ..core.ids import Role
from ..sim.scenario import Scenario
from .fleet_of import fleet_plan
from .turns import Sample

PREFILL_LOAD = 0.75  # of a prefill worker's time: beyond it queues grow
LINE_LOAD = 0.8
RELAY_SHARE = 0.25  # of requests, about as published
RELAY_OUTPUTS = 64  # of each


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request costs in the mean."""

    rate_per_s: float
    prefill_s: float  # seconds of one prefill worker
    outputs: float
    context: float
    line_bytes: float


@dataclass(frozen=True, slots=True)
class FirstCut:
    prefills: int
    relays: int
    mains: int
    line_gbit_s: float
    batch: int  # sequences that one decode worker may have at once within the promise
    demand: Demand

    def __str__(self) -> str:
        counts = f"P {self.prefills} : RLD {self.relays} : MD {self.mains}"
        return f"{counts}, line {self.line_gbit_s:.3g} Gbit/s, {self.batch} decodes a worker"


def first_cut(scenario: Scenario, found: Sequence[Sample]) -> FirstCut:
    """`found`: the load's requests, see `turns.samples`."""
    plan = fleet_plan(scenario)
    p, m = plan.workers[Role.PREFILL], plan.workers[Role.MAIN]
    demand = _demand(scenario, found, p.cost, p.limits.chunk_tokens * plan.grain)
    batch = _batch(m.cost, demand, scenario.sla.tpot_s, m.limits.max_sequences)
    under_way = demand.rate_per_s * demand.outputs * scenario.sla.tpot_s
    relayed = demand.rate_per_s * RELAY_SHARE * RELAY_OUTPUTS * scenario.sla.tpot_s
    has_relays = Role.RELAY in plan.workers
    return FirstCut(
        max(1, ceil(demand.rate_per_s * demand.prefill_s / PREFILL_LOAD)),
        max(1, ceil(relayed / batch)) if has_relays else 0,
        max(1, ceil(under_way / batch)),
        demand.rate_per_s * demand.line_bytes * 8 / 1e9 / LINE_LOAD,
        batch,
        demand,
    )


def _demand(scenario: Scenario, found: Sequence[Sample], cost: EngineCost, chunk_tokens: int) -> Demand:
    """Steps are shared by requests, so each pays their fixed part in proportion to its tokens."""
    plan = fleet_plan(scenario)
    count = len(found)
    seconds = sum(
        cost.seconds_of(s.missed, s.missed * (s.known + s.prompt) / 2, 0, 0)
        - cost.step_s * (1 - s.missed / chunk_tokens)
        for s in found
    )
    wire = plan.sizes.token_bytes / plan.grain
    crossing = sum(s.missed * wire + plan.sizes.state_bytes for s in found)
    span = found[-1].at_s - found[0].at_s
    rate = scenario.load.rate_per_s if scenario.load.hits else count / span if span > 0 else 1.0
    return Demand(
        rate,
        seconds / count,
        sum(s.outputs for s in found) / count,
        sum(s.prompt + s.outputs / 2 for s in found) / count,
        crossing / count,
    )


def _batch(cost: EngineCost, demand: Demand, tpot_s: float, most: int) -> int:
    """The most decodes in one step that takes no longer than promised."""
    batch = 1
    while batch < most and cost.seconds_of(0, 0.0, batch + 1, int((batch + 1) * demand.context)) <= tpot_s:
        batch += 1
    return batch
