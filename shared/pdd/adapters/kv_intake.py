"""The receiver's side of a KV link, whatever carries the bytes: frames in, staging filled, answers and events out.

A `Session` is one connection's. It is used by one thread at a time; the `Intake` they share is thread-safe.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.effects import Count, ExpectKv, Gauge
from ..core.errors import FrameError
from ..core.events import KvClosed, KvDamaged, KvExpected, KvLanded, KvRefused
from ..core.ids import Peer, TransferId
from ..core.wire import (
    ENDS_CHUNK,
    PROTOCOL,
    AckFrame,
    CancelFrame,
    ChunkFrame,
    CloseAck,
    CloseFrame,
    Frame,
    Hello,
    OpenFrame,
    Ping,
    Pong,
    Reason,
    Refuse,
    WireShape,
    checksum,
)
from ..ports import KvChunk, KvShape, Notes, Sink
from .staging import Place, Staging

TRANSFERS_MAX = 1024  # open on one connection
HANG_UP_S = 1.0
NO_TRANSFER = TransferId("")


def wire_shape(shape: KvShape) -> WireShape:
    return WireShape(shape.layers, shape.kv_heads, shape.head_dim, shape.dtype)  # type: ignore[arg-type]


@dataclass(slots=True)
class Owner:
    """The sender that writes a transfer, and the connections it does so on, by lane."""

    sender: Peer
    attempt: int
    lanes: dict[int, "Session"]


@dataclass(slots=True)
class Intake:
    """`credit_bytes`: so much payload a sender may have unanswered here; 0: no bound."""

    me: Peer
    fingerprint: str
    staging: Staging
    sink: Sink
    notes: Notes
    address: str = ""  # as senders reach it
    credit_bytes: int = 0
    _owners: dict[TransferId, Owner] = field(default_factory=dict, init=False)
    _closings: dict[TransferId, bytes] = field(default_factory=dict, init=False)  # came before the last chunk
    _lock: threading.RLock = field(default_factory=threading.RLock, init=False)  # a sink may drop what it hears of

    def expect(self, effect: ExpectKv) -> None:
        refusal = self.staging.expect(effect)
        self._gauge()
        self.sink(KvRefused(effect.transfer, refusal) if refusal else KvExpected(effect.transfer, self.address))

    def take(self, transfer: TransferId) -> list[KvChunk]:
        return self.staging.take(transfer)

    def drop(self, transfer: TransferId) -> None:
        self.staging.drop(transfer)
        with self._lock:
            self._owners.pop(transfer, None)
            self._closings.pop(transfer, None)
        self._gauge()

    def count(self, reason: str) -> None:
        self.notes.note(Count("pdd_kv_frames_dropped_total", (("reason", reason),)))

    def _gauge(self) -> None:
        self.notes.note(Gauge("pdd_staging_bytes", self.staging.used_bytes))

    def own(self, transfer: TransferId, session: "Session", attempt: int) -> bool:
        """A connection that knows the secret has the transfer, beside the sender's other lanes.

        An older connection in the same lane, or of another sender, hangs: waits a moment for it to let go of the place of a chunk.
        False for an attempt that is older than one already here.
        """
        with self._lock:
            owner = self._owners.get(transfer)
            if owner and owner.sender == session.sender:
                if attempt < owner.attempt:
                    return False
                owner.attempt = attempt
                left = [owner.lanes[session.lane]] if session.lane in owner.lanes else []
                owner.lanes[session.lane] = session
            else:
                left = list(owner.lanes.values()) if owner else []
                self._owners[transfer] = Owner(session.sender, attempt, {session.lane: session})
        for older in left:
            if older is not session:
                older.hang_up()
                older.over.wait(HANG_UP_S)
        return True

    def disown(self, transfer: TransferId, session: "Session") -> None:
        with self._lock:
            owner = self._owners.get(transfer)
            if owner and owner.lanes.get(session.lane) is session:
                del owner.lanes[session.lane]
                if not owner.lanes:
                    del self._owners[transfer]

    def closed(self, transfer: TransferId, closing: bytes) -> None:
        """The closing frame is here; chunks on other lanes may still be on their way, and are told of first."""
        with self._lock:
            if self.staging.knows(transfer):
                self._closings[transfer] = closing
                self._close_if_whole(transfer)

    def land(self, transfer: TransferId, place: Place) -> bool:
        """False where the transfer was dropped meanwhile."""
        with self._lock:
            landed = self.staging.land(place)
            for start, stop in landed:
                self.sink(KvLanded(transfer, start, stop))
            self._close_if_whole(transfer)
        return bool(landed)

    def _close_if_whole(self, transfer: TransferId) -> None:
        if transfer in self._closings and self.staging.whole(transfer):
            self.sink(KvClosed(transfer, self._closings.pop(transfer)))


class Session:
    """Frames of one connection in, answers out. `hang_up` makes the connection end, from any thread, without waiting."""

    def __init__(self, intake: Intake, hang_up: Callable[[], None]) -> None:
        self.hang_up = hang_up
        self.over = threading.Event()
        self.sender = intake.me  # until it has greeted
        self.lane = 0
        self._intake = intake
        self._attempts: dict[TransferId, int] = {}

    def greet(self, frame: Frame) -> Hello | Refuse:
        """The answer to the first frame; after a Refuse the connection ends."""
        if not isinstance(frame, Hello):
            raise FrameError(f"a connection begins with Hello, not {type(frame).__name__}")
        for right, reason in (
            (frame.protocol == PROTOCOL, Reason.VERSION),
            (frame.fingerprint == self._intake.fingerprint, Reason.FINGERPRINT),
        ):
            if not right:
                self._intake.count(reason)
                return Refuse(NO_TRANSFER, 0, reason)
        self.sender, self.lane = frame.sender, frame.lane
        return Hello(PROTOCOL, self._intake.me, self._intake.fingerprint, frame.lane, self._intake.credit_bytes)

    def receive(self, frame: Frame) -> Frame | None:
        """The answer to any frame without payload, if it wants one. Raises FrameError on what a sender never says."""
        match frame:
            case OpenFrame():
                return self._open(frame)
            case CloseFrame(transfer, attempt, closing):
                if self._attempts.get(transfer) != attempt:
                    return self._refuse(transfer, attempt, Reason.UNKNOWN)
                self._end(transfer)
                self._intake.closed(transfer, closing)
                return CloseAck(transfer, attempt)
            case CancelFrame(transfer, attempt):
                if self._attempts.get(transfer) == attempt:
                    self._end(transfer)
                return None
            case Ping(number):
                return Pong(number)
        raise FrameError(f"{type(frame).__name__} is nothing that a sender says")

    def _open(self, frame: OpenFrame) -> Refuse | None:
        refusal = self._admit(frame)
        if not refusal and not self._intake.own(frame.transfer, self, frame.attempt):
            refusal = Reason.UNKNOWN
        if refusal:
            return self._refuse(frame.transfer, frame.attempt, refusal)
        self._attempts[frame.transfer] = frame.attempt
        return None

    def _admit(self, frame: OpenFrame) -> Reason | None:
        if frame.receiver != self._intake.me:
            return Reason.RECEIVER
        if len(self._attempts) >= TRANSFERS_MAX and frame.transfer not in self._attempts:
            return Reason.LIMIT
        if frame.attempt < self._attempts.get(frame.transfer, 0):
            return Reason.UNKNOWN
        shape = KvShape(frame.shape.layers, frame.shape.kv_heads, frame.shape.head_dim, frame.shape.dtype)
        return self._intake.staging.admit(frame.transfer, frame.epoch, frame.secret, shape)

    def place(self, frame: ChunkFrame) -> Place | Reason:
        """Where the payload goes; with a Reason, nowhere. Either way `finish` or `cut_short` is told."""
        if self._attempts.get(frame.transfer) != frame.attempt:
            return Reason.UNKNOWN
        place = self._intake.staging.claim(frame.transfer, frame.epoch, frame.start, frame.stop)
        if isinstance(place, Reason):
            return place
        shape = place.owner.shape
        assert shape is not None
        whole = frame.first_layer == 0 and frame.stop_layer == shape.layers and frame.dtype == shape.dtype
        if whole and frame.payload_bytes == place.view.nbytes:
            return place
        self._intake.staging.give_back(place)
        return Reason.LENGTH

    def finish(self, frame: ChunkFrame, place: Place | Reason) -> Frame:
        """The payload is received, or discarded: the answer."""
        if isinstance(place, Place):
            if checksum(place.view) == frame.checksum:
                return self._land(frame, place)
            self._intake.staging.give_back(place)
            place = Reason.CHECKSUM
        if place is Reason.DOUBLE:
            self._intake.count(place)
            return AckFrame(frame.transfer, frame.attempt, frame.start, frame.stop)
        if place is Reason.BUSY:  # the sender tries again
            self._intake.count(place)
            return Refuse(frame.transfer, frame.attempt, place, frame.start, frame.stop)
        if place in ENDS_CHUNK:
            self._damaged(frame.transfer, place)
            return Refuse(frame.transfer, frame.attempt, place, frame.start, frame.stop)
        return self._refuse(frame.transfer, frame.attempt, place, frame.start, frame.stop)

    def _land(self, frame: ChunkFrame, place: Place) -> Frame:
        if not self._intake.land(frame.transfer, place):
            return self._refuse(frame.transfer, frame.attempt, Reason.UNKNOWN, frame.start, frame.stop)
        if place.aside:
            self._intake.count(Reason.OVERLAP)
        return AckFrame(frame.transfer, frame.attempt, frame.start, frame.stop)

    def cut_short(self, frame: ChunkFrame, place: Place | Reason) -> None:
        """The connection ended inside the payload. Its sender knows, and sends the chunk again."""
        if isinstance(place, Place):
            self._intake.staging.give_back(place)
            self._intake.count(Reason.SHORT)

    def broken(self) -> None:
        """A frame could not be read: every open transfer may have lost one."""
        self._intake.count(Reason.BAD_FRAME)
        for transfer in self._attempts:
            self._intake.sink(KvDamaged(transfer, Reason.BAD_FRAME))

    def ended(self) -> None:
        for transfer in list(self._attempts):
            self._end(transfer)
        self.over.set()

    def _end(self, transfer: TransferId) -> None:
        self._attempts.pop(transfer, None)
        self._intake.disown(transfer, self)

    def _damaged(self, transfer: TransferId, reason: Reason) -> None:
        self._intake.count(reason)
        self._intake.sink(KvDamaged(transfer, reason))

    def _refuse(self, transfer: TransferId, attempt: int, reason: Reason, start: int = 0, stop: int = 0) -> Refuse:
        """The whole transfer, as far as this connection goes."""
        self._intake.count(reason)
        if self._attempts.get(transfer) == attempt:
            self._end(transfer)
        return Refuse(transfer, attempt, reason, start, stop)
