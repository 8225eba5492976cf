"""A line in virtual time, as a fluid: who waits is served in an order, up to what one flow can get, until the line is full.

Orders: `owner` (the product's: core/line_owner leases to each sender, small transfers first, then each sender's own by core/order),
`shortest` (one queue for all senders by core/order), `fair` (all alike, as TCP shares), `arrival` (first come, first served).
`flows_max` keeps the later ones waiting altogether.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..core.ids import Peer
from ..core.line_owner import grants
from ..core.link import SMALL_BYTES, SMALL_S
from ..core.messages import LineWants, Waiting
from ..core.order import turn
from ..core.pace import FIRST_SMALL
from ..core.wanting import shortest
from .world import World

PROGRESS_S = 1.0  # what crosses for long is told now and then
CLOSE = 1e-6  # bytes: less is nothing


@dataclass(slots=True, eq=False)
class Flow:
    """`ready` bytes may leave, `sent` of them have. `progress` is called when all that was ready has crossed, and now and then before."""

    number: int
    opened_at: float
    progress: Callable[[], None]
    sender: Peer | None = None
    total: float = 0.0  # bytes expected in all
    warm_up: bool = False
    ready: float = 0.0
    sent: float = 0.0
    rate: float = 0.0
    told_at: float = 0.0

    @property
    def left(self) -> float:
        return self.ready - self.sent

    @property
    def remaining(self) -> float:
        return max(self.total, self.ready) - self.sent


class SimLine:
    def __init__(
        self,
        world: World,
        bytes_per_s: float,
        rtt_s: float,
        *,
        flow_bytes_per_s: float = math.inf,
        order: str = "owner",
        flows_max: int = 0,
    ) -> None:
        self.rtt_s, self.bytes_per_s = rtt_s, bytes_per_s
        self.carried = 0.0
        self.busy_s = 0.0  # weighted by the share of the line in use
        self._world, self._flow_bytes_per_s = world, flow_bytes_per_s or math.inf
        self._order, self._flows_max = order, flows_max or (1 << 62)
        if order not in ORDERS:
            raise ValueError(f"order: one of {', '.join(ORDERS)}, not {order!r}")
        self._waiting: dict[Flow, None] = {}
        self._count = 0
        self._at = 0.0
        self._turn = 0

    def open(
        self,
        progress: Callable[[], None],
        total: float,
        since: float,
        sender: Peer | None = None,
        *,
        warm_up: bool = False,
    ) -> Flow:
        self._count += 1
        return Flow(self._count, since, progress, sender, total, warm_up, told_at=self._world.now())

    def offer(self, flow: Flow, count: float) -> None:
        if count > 0:
            self._advance()
            if flow.left <= CLOSE:
                flow.told_at = self._world.now()
            flow.ready += count
            self._waiting[flow] = None
            self._change()

    def cancel(self, flow: Flow) -> None:
        if flow in self._waiting:
            self._advance()
            flow.rate = 0.0
            del self._waiting[flow]
            self._change()

    def shape(self, bytes_per_s: float) -> None:
        """From now on. 0: cut."""
        self._advance()
        self.bytes_per_s = bytes_per_s
        self._change()

    @property
    def queued(self) -> int:
        return len(self._waiting)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        now = self._world.now()
        passed, self._at = now - self._at, now
        if passed <= 0:
            return
        for flow in self._waiting:
            if flow.rate:
                crossed = min(flow.left, flow.rate * passed)
                flow.sent += crossed
                self.carried += crossed

    def _change(self) -> None:
        """Serve again, and look again when the first of those served has crossed."""
        self._advance()
        self._turn += 1
        soonest = math.inf
        self._serve()
        now = self._world.now()
        for flow in self._waiting:
            if flow.rate:
                soonest = min(soonest, flow.left / flow.rate, max(0.0, flow.told_at + PROGRESS_S - now))
        if soonest < math.inf:
            turn = self._turn
            self._world.call_later(soonest + 1e-9, lambda: self._look(turn))

    def _serve(self) -> None:
        flows = list(self._waiting)
        if len(flows) > 1:
            flows.sort(key=self._turn_of)
        for flow in flows:
            flow.rate = 0.0
        served = flows[: self._flows_max]
        if self._order == "fair":
            self._share(served, self.bytes_per_s)
        elif self._order == "owner" and len(served) > 1:
            self._by_owner(served)
        else:
            self._in_turn(served, self.bytes_per_s)

    def _share(self, flows: list[Flow], budget: float) -> float:
        """What is left of the budget."""
        share = min(self._flow_bytes_per_s, budget / max(1, len(flows)))
        for flow in flows:
            flow.rate = share
        return budget - share * len(flows)

    def _in_turn(self, flows: list[Flow], budget: float) -> float:
        for flow in flows:
            more = min(self._flow_bytes_per_s - flow.rate, budget)
            flow.rate += more
            budget -= more
        return budget

    def _by_owner(self, flows: list[Flow]) -> None:
        """Bulk makes room for small transfers; it goes by leases, and what a lease leaves unused to whoever is next."""
        small_limit = min(max(self.bytes_per_s * SMALL_S, SMALL_BYTES[0]), SMALL_BYTES[1])
        small = [flow for flow in flows if flow.total <= small_limit and not flow.warm_up]
        bulk = [flow for flow in flows if flow.total > small_limit or flow.warm_up]
        room = self.bytes_per_s * ((1 - FIRST_SMALL) if bulk else 1.0)
        left = self.bytes_per_s - room + self._share(small, room)
        by_sender: dict[Peer | None, list[Flow]] = {}
        for flow in bulk:
            by_sender.setdefault(flow.sender, []).append(flow)
        granted = grants({sender: self._wants(own) for sender, own in by_sender.items()}, self.bytes_per_s)  # type: ignore[misc]
        budget = left
        for sender, own in by_sender.items():
            part = min(granted[sender], left / len(by_sender) if math.isinf(granted[sender]) else math.inf, budget)  # type: ignore[index]
            budget -= part - self._in_turn(own, part)
        self._in_turn(bulk, budget)

    def _wants(self, flows: list[Flow]) -> LineWants:
        now = self._world.now()
        waiting = [Waiting(int(f.remaining), int(f.left), now - f.opened_at, f.warm_up) for f in flows]
        return LineWants(
            "", self.bytes_per_s, 0, 0.0, 0, shortest(sorted(waiting, key=lambda one: one.remaining_bytes))
        )

    def _turn_of(self, flow: Flow) -> tuple[bool, float]:
        if self._order in ("fair", "arrival"):
            return flow.warm_up, flow.number
        return turn(int(flow.remaining), self._world.now() - flow.opened_at, self.bytes_per_s, flow.warm_up)

    def _look(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._advance()
        now = self._world.now()
        told = [
            flow
            for flow in self._waiting
            if flow.left <= CLOSE + 1e-8 * flow.rate or (flow.rate and now - flow.told_at >= PROGRESS_S)
        ]
        for flow in told:
            flow.told_at = now
            if flow.left <= CLOSE + 1e-8 * flow.rate:
                self.carried += flow.left
                flow.sent, flow.rate = flow.ready, 0.0
                del self._waiting[flow]
        self._change()
        for flow in told:
            flow.progress()


ORDERS = ("owner", "shortest", "fair", "arrival")
