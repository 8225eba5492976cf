"""Law 7, every wait is bounded: how long a request may go on once nothing fails any more, and how long what it took is held.

Both follow from the table of time-outs and from the work that is left: the plan under way at calm may be stuck, which is noticed
after the longest patience; the next one has only other requests in its way, and if it is stuck too, the client is told.
"""

from dataclasses import dataclass

from ..core.timeouts import STALL_GROWTH
from .house import House
from .house_parts import Client, EngineSpec
from .laws import Laws, Violation

PLANS_GROWING = 4  # the patience of a plan grows so often


@dataclass(frozen=True, slots=True)
class Bounds:
    house: House
    calm_at: float

    @property
    def end_s(self) -> float:
        """From calm, or from submission after it, to the end."""
        given = self.house.spec.timeouts
        return given.suspect_s + 2 * given.stall_s * STALL_GROWTH**PLANS_GROWING + self.work_s

    @property
    def given_back_s(self) -> float:
        """From calm until nobody holds anything: the end, and what a lease and a release may last beyond it."""
        given = self.house.spec.timeouts
        return self.end_s + given.lease_s + 2 * given.suspect_s

    @property
    def work_s(self) -> float:
        """All requests one after the other, through the slowest engine and over the line to two receivers."""
        spec = self.house.spec
        costs = [engine.cost for engine in (*spec.engines.values(), EngineSpec())]
        step_s = max(cost.step_s for cost in costs)
        per_id_s = 1 / min(cost.prefill_tokens_per_s for cost in costs)
        per_id_s += 2 * spec.kv_shape.bytes_per_token / spec.line_bytes_per_s
        asked = [client.asked for client in self.house.clients.all.values()]
        return sum(len(one.ids) * per_id_s + one.sampling.max_tokens * step_s for one in asked)

    def check(self, laws: Laws) -> None:
        for client in self.house.clients.all.values():
            self._check(laws, client)

    def _check(self, laws: Laws, client: Client) -> None:
        name = client.asked.request
        if not client.ended:
            raise Violation("every wait ends", f"{name} has not ended, {len(client.ids)} outputs")
        if client.gone:
            return
        waited = laws.ended_at[name] - max(self.calm_at, laws.submitted_at[name])
        if waited > self.end_s:
            raise Violation("every wait ends", f"{name} ended {waited:.1f} s after calm, more than {self.end_s:.1f}")
