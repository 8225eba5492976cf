"""The receiver's side of one connection, whatever carries the bytes: frames in, answers out. Used by one thread at a time."""

import threading
from collections.abc import Callable

from ..core.errors import FrameError
from ..core.events import KvDamaged
from ..core.ids import TransferId
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
    checksum,
)
from ..ports import KvShape
from .kv_intake import Intake
from .staging import Place

TRANSFERS_MAX = 1024  # open on one connection
NO_TRANSFER = TransferId("")


class Session:
    """Frames of one connection in, answers out. `hang_up` makes the connection end, from any thread, without waiting."""

    def __init__(self, intake: Intake, hang_up: Callable[[], None]) -> None:
        self.hang_up = hang_up
        self.over = threading.Event()
        self.sender = intake.me  # until it has greeted
        self.lane = 0
        self._intake = intake
        self._attempts: dict[TransferId, int] = {}
        self._aside = bytearray()

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
        return Hello(
            PROTOCOL,
            self._intake.me,
            self._intake.fingerprint,
            frame.lane,
            self._intake.credit_bytes,
            tuple(self._intake.codecs),
        )

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
        fits = frame.payload_bytes <= place.view.nbytes if frame.codec else frame.payload_bytes == place.view.nbytes
        if whole and fits and (not frame.codec or frame.codec in self._intake.codecs):
            return place
        self._intake.staging.give_back(place)
        return Reason.LENGTH if frame.codec in ("", *self._intake.codecs) else Reason.CODEC

    def target(self, frame: ChunkFrame, place: Place) -> memoryview:
        """Where the payload is received: in its place, or aside where it has to be unpacked."""
        if not frame.codec:
            return place.view
        if len(self._aside) < frame.payload_bytes:
            self._aside = bytearray(frame.payload_bytes)
        return memoryview(self._aside)[: frame.payload_bytes]

    def finish(self, frame: ChunkFrame, place: Place | Reason) -> Frame:
        """The payload is received, or discarded: the answer."""
        if isinstance(place, Place):
            wrong = self._wrong(frame, place)
            if wrong is None:
                return self._land(frame, place)
            self._intake.staging.give_back(place)
            place = wrong
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

    def _wrong(self, frame: ChunkFrame, place: Place) -> Reason | None:
        """What was received, checked, and unpacked into its place."""
        received = self.target(frame, place)
        if checksum(received) != frame.checksum:
            return Reason.CHECKSUM
        if frame.codec:
            try:
                self._intake.codecs[frame.codec].unpack(received, place.view, frame.dtype)
            except FrameError:
                return Reason.CODEC
        return None

    def _land(self, frame: ChunkFrame, place: Place) -> Frame:
        if not self._intake.land(frame.transfer, place):
            return self._refuse(frame.transfer, frame.attempt, Reason.UNKNOWN, frame.start, frame.stop)
        if place.aside:
            self._intake.count(Reason.OVERLAP)
        return AckFrame(frame.transfer, frame.attempt, frame.start, frame.stop)

    def cut_short(self, frame: ChunkFrame, place: Place | Reason) -> None:
        """The connection ended inside the payload. Its sender knows, and sends the chunk again."""
        if isinstance(place, Place):
            self._intake.count(Reason.SHORT)
            self._intake.staging.give_back(place)

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
