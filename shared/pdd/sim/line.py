"""A line in virtual time, as a fluid: who waits is served in an order, up to what one flow can get, until the line is full.

Orders: `shortest` (the product's, core/order), `fair` (all alike, as TCP shares), `arrival` (first come, first served). `flows_max` keeps
the later ones waiting altogether.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..core.order import turn
from .world import World

PROGRESS_S = 1.0  # what crosses for long is told now and then
CLOSE = 1e-6  # bytes: less is nothing


@dataclass(slots=True, eq=False)
class Flow:
    """`ready` bytes may leave, `sent` of them have. `progress` is called when all that was ready has crossed, and now and then before."""

    number: int
    opened_at: float
    progress: Callable[[], None]
    total: float = 0.0  # bytes expected in all
    warm_up: bool = False
    ready: float = 0.0
    sent: float = 0.0
    rate: float = 0.0
    told_at: float = 0.0

    @property
    def left(self) -> float:
        return self.ready - self.sent


class SimLine:
    def __init__(
        self,
        world: World,
        bytes_per_s: float,
        rtt_s: float,
        *,
        flow_bytes_per_s: float = math.inf,
        order: str = "shortest",
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

    def open(self, progress: Callable[[], None], total: float, since: float, *, warm_up: bool = False) -> Flow:
        self._count += 1
        return Flow(self._count, since, progress, total, warm_up, told_at=self._world.now())

    def offer(self, flow: Flow, count: float) -> None:
        if count > 0:
            if flow.left <= CLOSE:
                flow.told_at = self._world.now()
            flow.ready += count
            self._waiting[flow] = None
            self._change()

    def cancel(self, flow: Flow) -> None:
        if flow in self._waiting:
            self._advance()
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
        left, served = self.bytes_per_s, list(self._waiting)
        if len(served) > 1:
            served.sort(key=self._turn_of)
        for flow in served[self._flows_max :]:
            flow.rate = 0.0
        served = served[: self._flows_max]
        if self._order == "fair":
            share = min(self._flow_bytes_per_s, left / max(1, len(served)))
            for flow in served:
                flow.rate = share
            return
        for flow in served:
            flow.rate = min(self._flow_bytes_per_s, left)
            left -= flow.rate

    def _turn_of(self, flow: Flow) -> tuple[bool, float]:
        if self._order != "shortest":
            return flow.warm_up, flow.number
        remaining = max(flow.total, flow.ready) - flow.sent
        return turn(int(remaining), self._world.now() - flow.opened_at, self.bytes_per_s, flow.warm_up)

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
                flow.sent = flow.ready
                del self._waiting[flow]
        self._change()
        for flow in told:
            flow.progress()


ORDERS = ("shortest", "fair", "arrival")
