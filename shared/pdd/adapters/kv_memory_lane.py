"""One connection of a memory link: frames as objects, carried by the lines between the sites."""

from typing import TYPE_CHECKING

import msgspec

from ..core.lane import Lane
from ..core.leaving import ChunkDue
from ..core.wire import ChunkFrame, Frame, Hello, Reason, Refuse
from .kv_intake import wire_shape
from .kv_memory_lines import MemoryLines, Parcel
from .kv_session import Session

if TYPE_CHECKING:
    from .kv_memory import MemoryKvLink, MemoryLine

REFUSED_S = 0.01  # until a failed connect is known
FRAME_BYTES = 100  # about what a header and metadata take


class Connection:
    """From one link to another. Frames of a connection that has ended arrive nowhere."""

    def __init__(self, lines: MemoryLines, lane: "MemoryLane", receiver: "MemoryKvLink") -> None:
        self.sites = (lane.line.me.site, receiver.me.site)
        self.alive = True
        self._lines, self._lane = lines, lane
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
            self._lane.answered(frame)

    def break_off(self, why: str) -> None:
        if not self.alive:
            return
        self.alive = False
        self._lines.ended(self)
        self._session.ended()
        self._lane.lost(why)


class MemoryLane:
    """One connection of a line, made when it is wanted."""

    def __init__(self, line: "MemoryLine", lane: Lane) -> None:
        self.line, self.lane = line, lane
        self.connection: Connection | None = None
        self._dialed_at = 0.0
        self._failing = False

    def pump(self) -> bool:
        """Connect, or send what may leave. Was there anything?"""
        link, outbox = self.line.link, self.line.outbox
        if self.connection is None and not self._failing and outbox.wanted(self.lane):
            self._dial()
        if not self.lane.up or not (due := outbox.next(self.lane, link.clock.now())):
            return False
        self._send(due)
        return True

    def _dial(self) -> None:
        link = self.line.link
        receiver = link.lines.reach(self.line.me.site, self.line.address)
        self.lane.dialing = True
        if receiver is None:
            self._failing = True
            return link.clock.call_later(REFUSED_S, self._unreachable)
        self.connection = Connection(link.lines, self, receiver)
        self._dialed_at = link.clock.now()
        self.connection.send(Parcel(msgspec.structs.replace(link.hello, lane=self.lane.number)))

    def _unreachable(self) -> None:
        self._failing = False
        self.line.tell(self.line.outbox.unreachable(self.lane, "unreachable"))
        self.line.pump()

    def _send(self, due: Frame | ChunkDue) -> None:
        assert self.connection is not None
        parcel = self._chunk(due) if isinstance(due, ChunkDue) else Parcel(due)
        if parcel is None:
            return
        for one in self.line.link.lines.fault(parcel):
            self.connection.send(one)

    def _chunk(self, due: ChunkDue) -> Parcel | None:
        try:
            chunk = self.line.link.source.export_kv(due.key, due.start, due.stop)
        except KeyError:
            self.line.tell(self.line.outbox.fail(due.transfer, due.attempt, "sequence_closed"))
            return None
        payload = chunk.data.cast("B")
        self.line.outbox.crossing(self.lane, due, payload.nbytes)
        return Parcel(due.frame(wire_shape(chunk.shape), [payload]), payload)

    def answered(self, frame: Frame) -> None:
        outbox, now = self.line.outbox, self.line.link.clock.now()
        if self.lane.up:
            self.line.tell(outbox.receive(self.lane, frame, now))
        elif isinstance(frame, Refuse):
            assert self.connection is not None
            return self.connection.break_off(frame.reason)
        else:
            assert isinstance(frame, Hello)
            outbox.connected(self.lane, frame, now, now - self._dialed_at)
        self.line.pump()

    def lost(self, why: str) -> None:
        self.connection = None
        if self.lane.up:
            self.line.tell(self.line.outbox.disconnected(self.lane, why))
        else:
            self.line.tell(self.line.outbox.unreachable(self.lane, "unreachable" if why == "lost" else why))
        self.line.wake(REFUSED_S)

    def look(self, now: float) -> None:
        """Time-outs."""
        if self.connection is None:
            return
        if not self.lane.up and now - self._dialed_at > self.line.link.connect_s:
            self.connection.break_off("unreachable")
        elif self.lane.up and self.line.outbox.overdue(self.lane, now):
            self.connection.break_off("silent")
