"""What a fleet costs and whether it keeps its promise. BCR, as published: requests/s within the SLA / hardware cost."""

from dataclasses import dataclass
from typing import Any

from ..sim.scenario import Scenario, ScenarioError, Workers

CARDS_PER_NODE = 8


def cost(scenario: Scenario) -> float:
    """In the unit of the scenario's prices. The line costs nothing where both roles stand at one site."""
    fleet = scenario.fleet
    nodes = sum(_nodes(scenario, table) for table in (fleet.prefill, fleet.relay, fleet.main))
    return nodes + (0.0 if fleet.same_site else line_cost(scenario))


def line_cost(scenario: Scenario) -> float:
    """`price.line` is that of the scenario's `price.line_gbit_s` (where given, else of its line whatever the rate)."""
    price = scenario.price
    return price.line * (scenario.line.gbit_s / price.line_gbit_s if price.line_gbit_s else 1.0)


def _nodes(scenario: Scenario, table: Workers) -> float:
    if not table.workers:
        return 0.0
    if table.chip not in scenario.price.nodes:
        raise ScenarioError(f"{scenario.name}: [price] nodes has no {table.chip}")
    return table.workers * table.cards / CARDS_PER_NODE * scenario.price.nodes[table.chip]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`ttft_s` counts the KV's transfer where the SLA does: then it is the time to the second token. P90 both, and P99 beside."""

    ttft_s: float
    tpot_s: float
    ttft_p99_s: float
    failed: int
    ttft_allowed_s: float
    tpot_allowed_s: float

    @property
    def kept(self) -> bool:
        return not self.failed and self.ttft_s <= self.ttft_allowed_s and self.tpot_s <= self.tpot_allowed_s

    @property
    def strain(self) -> float:
        """Above 1: broken, by so much."""
        return max(self.ttft_s / self.ttft_allowed_s, self.tpot_s / self.tpot_allowed_s, 2.0 if self.failed else 0.0)

    @property
    def binds(self) -> str:
        """Which half of the promise is nearer to its limit."""
        if self.failed:
            return "failures"
        return (
            "time to token"
            if self.ttft_s / self.ttft_allowed_s > self.tpot_s / self.tpot_allowed_s
            else "time per output"
        )


def judge(scenario: Scenario, found: dict[str, Any]) -> Verdict:
    """`found`: a run's summary."""
    ttft = found["second_token_s" if scenario.sla.with_transfer else "ttft_s"]
    never = float("inf")
    return Verdict(
        ttft.get("p90", never),
        found["tpot_s"].get("p90", never),
        ttft.get("p99", never),
        found["failed"],
        scenario.sla.ttft_s,
        scenario.sla.tpot_s,
    )
