"""KvLink in one process, for tests and virtual time: the same outbox, intake and staging as over TCP, and frames as objects.

The clock is all it has: no thread, no socket, no chance of its own.
"""

import math
from itertools import count

from ..core.effects import CloseTransfer, ExpectKv, OfferKv, OpenTransfer, PaceLine
from ..core.events import Event, KvCloseAcked, TransferFailed
from ..core.ids import Peer, TransferId
from ..core.outbox import Outbox
from ..core.wire import PROTOCOL, Hello
from ..ports import KvChunk, KvSource, Notes, Sink
from .kv_intake import Intake, wire_shape
from .kv_memory_lane import MemoryLane
from .kv_memory_lines import MemoryLines
from .kv_report import Site
from .staging import Staging

TICK_S = 0.25
CHUNK_TOKENS_MAX = 4096


class MemoryLine:
    """The way from one link to one receiver's address."""

    def __init__(self, link: "MemoryKvLink", address: str, outbox: Outbox, site: Site) -> None:
        self.me, self.link, self.address, self.outbox, self.site = link.me, link, address, outbox, site
        self.lanes = [MemoryLane(self, lane) for lane in outbox.lanes]
        self._pumping = False
        self._tick_at = math.inf

    def pump(self) -> None:
        """Send what may leave. What the sink does meanwhile waits for the loop, not for the stack."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while any(lane.pump() for lane in self.lanes):
                pass
        finally:
            self._pumping = False
        self.wake(self.outbox.wait_s(self.link.clock.now(), TICK_S))

    def wake(self, wait_s: float) -> None:
        """Look again then, if there is anything to look at."""
        at = self.link.clock.now() + wait_s
        if self.outbox.active and at < self._tick_at:
            self._tick_at = at
            self.link.clock.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        now = self.link.clock.now()
        if now < self._tick_at:
            return
        self._tick_at = math.inf
        if self.outbox.active:
            for lane in self.lanes:
                lane.look(now)
            self.tell([])
        self.pump()

    def tell(self, events: list[Event]) -> None:
        self.link.tell(self.site, events)

    def close(self) -> None:
        self.tell(self.outbox.lost("closed"))
        for lane in self.lanes:
            if lane.connection:
                lane.connection.break_off("closed")


class MemoryKvLink:
    """Satisfies ports.KvLink. `address` is any text; senders find it in the same `MemoryLines`."""

    def __init__(
        self,
        me: Peer,
        lines: MemoryLines,
        *,
        address: str,
        fingerprint: str,
        source: KvSource,
        sink: Sink,
        notes: Notes,
        staging_bytes: int,
        chunk_tokens_max: int = CHUNK_TOKENS_MAX,
        silence_s: float = 8.0,
        connect_s: float = 5.0,
        streams: int = 1,
        owned: bool = False,
    ) -> None:
        self.me, self.lines, self.clock, self.address = me, lines, lines.clock, address
        self.source, self.chunk_tokens_max = source, chunk_tokens_max
        self.silence_s, self.connect_s, self.streams = silence_s, connect_s, streams
        self.hello = Hello(PROTOCOL, me, fingerprint)
        self.staging = Staging(staging_bytes, source.kv_shape)
        self.intake = Intake(me, fingerprint, self.staging, sink, notes, address)
        self._sink, self._notes = sink, notes
        self._out: dict[str, MemoryLine] = {}
        self._line_of: dict[TransferId, MemoryLine] = {}
        self._owned = owned
        self._sites: dict[str, Site] = {}
        self._attempts = count(1)
        lines.attach(address, self)

    def close(self) -> None:
        """The process is gone: its connections break, and its address answers no more."""
        self.lines.detach(self.address)
        for connection in self.lines.connections():
            if connection.receiver is self:
                connection.break_off("lost")
        for line in self._out.values():
            line.close()

    def expect(self, effect: ExpectKv) -> None:
        self.intake.expect(effect)

    def take(self, transfer: TransferId) -> list[KvChunk]:
        return self.intake.take(transfer)

    def drop(self, transfer: TransferId) -> None:
        self.intake.drop(transfer)

    def open_transfer(self, effect: OpenTransfer) -> None:
        line = self._out.get(effect.address)
        before = self._line_of.get(effect.transfer)
        if before and before is not line:
            self.cancel(effect.transfer)
        if line is None:
            line = self._out[effect.address] = self._make_line(effect)
        self._line_of[effect.transfer] = line
        line.outbox.open(effect, next(self._attempts), self.clock.now())
        line.pump()

    def _make_line(self, effect: OpenTransfer) -> MemoryLine:
        name = effect.receiver.site
        site = self._sites.setdefault(name, Site.to(name, self._owned and name != self.me.site))
        outbox = Outbox(
            wire_shape(self.source.kv_shape),
            site.pace,
            silence_s=self.silence_s,
            chunk_tokens_max=self.chunk_tokens_max,
            streams=self.streams,
        )
        return MemoryLine(self, effect.address, outbox, site)

    def offer(self, effect: OfferKv) -> None:
        if line := self._line_of.get(effect.transfer):
            line.outbox.offer(effect.transfer, effect.start, effect.stop)
            line.tell([])
            line.pump()

    def close_transfer(self, effect: CloseTransfer) -> None:
        if line := self._line_of.get(effect.transfer):
            line.outbox.close(effect.transfer, effect.closing)
            line.pump()

    def cancel(self, transfer: TransferId) -> None:
        if line := self._line_of.pop(transfer, None):
            line.outbox.cancel(transfer)
            line.pump()

    def pace(self, effect: PaceLine) -> None:
        if site := self._sites.get(effect.site):
            site.pace.lease(effect.lease_bytes_per_s, effect.share_bytes_per_s, effect.until)
            for line in [one for one in self._out.values() if one.site is site]:
                line.pump()

    def tell(self, site: Site, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, KvCloseAcked | TransferFailed):
                self._line_of.pop(event.transfer, None)
            self._sink(event)
        boxes = (line.outbox for line in self._out.values() if line.site is site)
        site.tell(boxes, self.clock.now(), self._sink, self._notes)
