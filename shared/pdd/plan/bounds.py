"""Law 7, every wait is bounded: how long a request may go on once nothing fails any more, and how long what it took is held.

Both follow from the table of time-outs and from what a house needs to do its work at all.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..core.timeouts import STALL_GROWTH
from .house import Client, HouseSpec
from .laws import Laws, Violation


@dataclass(frozen=True, slots=True)
class Bounds:
    spec: HouseSpec
    calm_at: float

    @property
    def end_s(self) -> float:
        """From calm, or from submission after it, to the end."""
        given = self.spec.timeouts
        return given.suspect_s + given.stall_s * STALL_GROWTH**4 + given.give_up_s

    @property
    def all_s(self) -> float:
        """From calm until nobody holds anything: the end, and what a lease may last beyond it."""
        return self.end_s + self.spec.timeouts.lease_s + 2 * self.spec.timeouts.suspect_s

    def check(self, laws: Laws, clients: Iterable[Client]) -> None:
        for client in clients:
            name = client.asked.request
            if not client.ended:
                raise Violation("every wait ends", f"{name} has not ended, {len(client.ids)} outputs")
            if client.gone:
                continue
            waited = laws.ended_at[name] - max(self.calm_at, laws.submitted_at[name])
            if waited > self.end_s:
                raise Violation(
                    "every wait ends", f"{name} ended {waited:.1f} s after calm, more than {self.end_s:.1f}"
                )
