"""KvLink in one process, for tests and virtual time: the same outbox, intake and staging as over TCP, and frames as objects.

The clock is all it has: no thread, no socket, no chance of its own.
"""

from itertools import count

from ..core.effects import CloseTransfer, ExpectKv, OfferKv, OpenTransfer
from ..core.events import Event, KvCloseAcked, TransferFailed
from ..core.ids import Peer, TransferId
from ..core.link import LinkEstimator
from ..core.outbox import ChunkDue, Outbox
from ..core.wire import PROTOCOL, ChunkFrame, Frame, Hello, Reason, Refuse
from ..ports import KvChunk, KvSource, Notes, Sink
from .kv_intake import Intake, Session, wire_shape
from .kv_memory_lines import MemoryLines, Parcel
from .kv_report import tell_line
from .staging import Staging

TICK_S = 0.25
REFUSED_S = 0.01  # until a failed connect is known
FRAME_BYTES = 100  # about what a header and metadata take
CHUNK_TOKENS_MAX = 4096


class Connection:
    """From one link to another. Frames of a connection that has ended arrive nowhere."""

    def __init__(self, lines: MemoryLines, line: "MemoryLine", receiver: "MemoryKvLink") -> None:
        self.sites = (line.me.site, receiver.me.site)
        self.alive = True
        self._lines, self._line = lines, line
        self.receiver = receiver
        self._session = Session(receiver.intake, lambda: self.break_off("lost"))
        lines.opened(self)

    def send(self, parcel: Parcel) -> None:
        size = FRAME_BYTES + (parcel.payload.nbytes if parcel.payload is not None else 0)
        self._lines.carry(*self.sites, size, lambda: self._arrive(parcel), parcel.late_s)

    def _arrive(self, parcel: Parcel) -> None:
        if not self.alive:
            return
        frame, payload, _ = parcel
        if isinstance(frame, Hello):
            answer: Frame | None = self._session.greet(frame)
        elif isinstance(frame, ChunkFrame):
            answer = self._place(frame, payload)
        else:
            answer = self._session.receive(frame)
        if answer is not None and self.alive:
            back = answer
            self._lines.carry(*self.sites[::-1], FRAME_BYTES, lambda: self._answer(back))

    def _place(self, frame: ChunkFrame, payload: memoryview | None) -> Frame | None:
        place = self._session.place(frame)
        if payload is None or payload.nbytes != frame.payload_bytes:
            self._session.cut_short(frame, place)
            self.break_off("lost")
            return None
        if not isinstance(place, Reason):
            place.view[:] = payload
        return self._session.finish(frame, place)

    def _answer(self, frame: Frame) -> None:
        if self.alive:
            self._line.answered(frame)

    def break_off(self, why: str) -> None:
        if not self.alive:
            return
        self.alive = False
        self._lines.ended(self)
        self._session.ended()
        self._line.lost(why)


class MemoryLine:
    """The way from one link to one receiver's address."""

    def __init__(self, link: "MemoryKvLink", address: str, estimator: LinkEstimator) -> None:
        self.me, self._link, self.address = link.me, link, address
        self.outbox = Outbox(
            wire_shape(link.source.kv_shape), estimator, link.silence_s, link.chunk_tokens_max
        )  # fmt: skip
        self._estimator = estimator
        self._connection: Connection | None = None
        self._greeted = False
        self._dialed_at = 0.0
        self._ticking = self._pumping = self._failing = False

    def pump(self) -> None:
        """Send what may leave. What the sink does meanwhile waits for the loop, not for the stack."""
        if not self._ticking and self.outbox.active:
            self._ticking = True
            self._link.clock.call_later(TICK_S, self._tick)
        if self._pumping:
            return
        self._pumping = True
        try:
            if self._connection is None and not self._failing and self.outbox.active:
                self._dial()
            while self._greeted and (due := self.outbox.next(self._link.clock.now())):
                self._send(due)
        finally:
            self._pumping = False

    def _dial(self) -> None:
        receiver = self._link.lines.reach(self.me.site, self.address)
        if receiver is None:
            self._failing = True
            return self._link.clock.call_later(REFUSED_S, self._unreachable)
        self._connection = Connection(self._link.lines, self, receiver)
        self._greeted, self._dialed_at = False, self._link.clock.now()
        self._connection.send(Parcel(self._link.hello))

    def _unreachable(self) -> None:
        self._failing = False
        self._link.tell(self._estimator, self.outbox.lost("unreachable"))
        self.pump()

    def _send(self, due: Frame | ChunkDue) -> None:
        assert self._connection is not None
        parcel = self._chunk(due) if isinstance(due, ChunkDue) else Parcel(due)
        if parcel is None:
            return
        for one in self._link.lines.fault(parcel):
            self._connection.send(one)

    def _chunk(self, due: ChunkDue) -> Parcel | None:
        try:
            chunk = self._link.source.export_kv(due.key, due.start, due.stop)
        except KeyError:
            self._link.tell(self._estimator, self.outbox.fail(due.transfer, due.attempt, "sequence_closed"))
            return None
        payload = chunk.data.cast("B")
        return Parcel(due.frame(wire_shape(chunk.shape), payload), payload)

    def answered(self, frame: Frame) -> None:
        now = self._link.clock.now()
        if self._greeted:
            self._link.tell(self._estimator, self.outbox.receive(frame, now))
        elif isinstance(frame, Refuse):
            assert self._connection is not None
            return self._connection.break_off(frame.reason)
        else:
            self._greeted = True
            self.outbox.connected(now, now - self._dialed_at)
        self.pump()

    def lost(self, why: str) -> None:
        greeted, self._greeted, self._connection = self._greeted, False, None
        if greeted and self.outbox.untouched:
            self.outbox.disconnected()
        else:
            self._link.tell(self._estimator, self.outbox.lost(why if greeted or why != "lost" else "unreachable"))

    def _tick(self) -> None:
        self._ticking = False
        now = self._link.clock.now()
        connection = self._connection
        if connection and self.outbox.active:
            if not self._greeted and now - self._dialed_at > self._link.connect_s:
                connection.break_off("unreachable")
            elif self._greeted and self.outbox.overdue(now):
                connection.break_off("silent")
            self._link.tell(self._estimator, [])
        self.pump()

    def close(self) -> None:
        if self._connection:
            self._connection.break_off("closed")
        self._link.tell(self._estimator, self.outbox.lost("closed"))


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
    ) -> None:
        self.me, self.lines, self.clock, self.address = me, lines, lines.clock, address
        self.source, self.chunk_tokens_max = source, chunk_tokens_max
        self.silence_s, self.connect_s = silence_s, connect_s
        self.hello = Hello(PROTOCOL, me, fingerprint)
        self.staging = Staging(staging_bytes, source.kv_shape)
        self.intake = Intake(me, fingerprint, self.staging, sink, notes, address)
        self._sink, self._notes = sink, notes
        self._out: dict[str, MemoryLine] = {}
        self._line_of: dict[TransferId, MemoryLine] = {}
        self._estimators: dict[str, LinkEstimator] = {}
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
        self.cancel(effect.transfer)
        line = self._out.get(effect.address)
        if line is None:
            site = effect.receiver.site
            estimator = self._estimators.setdefault(site, LinkEstimator(site))
            line = self._out[effect.address] = MemoryLine(self, effect.address, estimator)
        self._line_of[effect.transfer] = line
        line.outbox.open(effect, next(self._attempts))
        line.pump()

    def offer(self, effect: OfferKv) -> None:
        if line := self._line_of.get(effect.transfer):
            line.outbox.offer(effect.transfer, effect.start, effect.stop)
            line.pump()

    def close_transfer(self, effect: CloseTransfer) -> None:
        if line := self._line_of.get(effect.transfer):
            line.outbox.close(effect.transfer, effect.closing)
            line.pump()

    def cancel(self, transfer: TransferId) -> None:
        if line := self._line_of.pop(transfer, None):
            line.outbox.cancel(transfer)
            line.pump()

    def tell(self, estimator: LinkEstimator, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, KvCloseAcked | TransferFailed):
                self._line_of.pop(event.transfer, None)
            self._sink(event)
        tell_line(estimator, self.clock.now(), self._sink, self._notes)
