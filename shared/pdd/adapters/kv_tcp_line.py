"""The way from here to one receiver over TCP: its outbox, and a few warm connections that carry what is due.

Nobody who asks for something waits for the line.
"""

import threading
from collections.abc import Callable

from ..core.effects import OpenTransfer
from ..core.events import Event
from ..core.ids import TransferId
from ..core.outbox import Outbox
from .kv_tcp_lane import LaneWorker, Means

JOIN_S = 2.0


class Line:
    """`tell` takes the events, under `lock`, so that no answer overtakes a failure. All lines of a link share the lock."""

    def __init__(
        self,
        address: str,
        site: str,
        near: bool,
        outbox: Outbox,
        means: Means,
        tell: Callable[[list[Event]], None],
        lock: threading.RLock,
    ) -> None:
        self.address, self.site, self.near, self.outbox, self.tell = address, site, near, outbox, tell
        self.changed = threading.Condition(lock)
        self.closed = False
        self._clock = means.clock
        self._workers = [LaneWorker(self, lane, means) for lane in outbox.lanes]

    @property
    def resting(self) -> bool:
        """No transfer, no connection, no thread."""
        return not self.outbox.active and not any(worker.running for worker in self._workers)

    # -- from any thread ----------------------------------------------------------------------------------------------

    def open(self, effect: OpenTransfer, attempt: int) -> None:
        with self.changed:
            self.outbox.open(effect, attempt, self._clock.now())
            self._wake()

    def offer(self, transfer: TransferId, start: int, stop: int) -> None:
        with self.changed:
            self.outbox.offer(transfer, start, stop)
            self._wake()

    def close_transfer(self, transfer: TransferId, closing: bytes) -> None:
        with self.changed:
            self.outbox.close(transfer, closing)
            self._wake()

    def cancel(self, transfer: TransferId) -> None:
        with self.changed:
            self.outbox.cancel(transfer)
            self._wake()

    @property
    def carrying(self) -> int:
        """Bulk connections with KV under way."""
        return sum(bool(lane.sent.payload_bytes) for lane in self.outbox.lanes if not lane.small)

    def keep_pace(self, bytes_per_s: float) -> None:
        """Each bulk connection no faster than this."""
        for worker in self._workers:
            worker.keep_pace(bytes_per_s)

    def _wake(self) -> None:
        for worker in self._workers:
            worker.start_if_wanted()
        self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.tell(self.outbox.lost("closed"))
            for worker in self._workers:
                worker.hang_up("closed")
            self.changed.notify_all()

    def join(self) -> None:
        for worker in self._workers:
            worker.join(JOIN_S)
