"""What all connections of one KV receiver share: staging, who writes which transfer, and what its role is told. Thread-safe."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..core.effects import Count, ExpectKv, Gauge
from ..core.events import KvClosed, KvExpected, KvLanded, KvRefused
from ..core.ids import Peer, TransferId
from ..core.wire import WireShape
from ..ports import KvChunk, KvShape, Notes, Sink
from .kv_codecs import Codec
from .staging import Place, Staging

if TYPE_CHECKING:
    from .kv_session import Session

HANG_UP_S = 1.0


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
    """`credit_bytes`: so much payload a sender may have unanswered here; 0: no bound. `codecs`: what may be unpacked."""

    me: Peer
    fingerprint: str
    staging: Staging
    sink: Sink
    notes: Notes
    address: str = ""  # as senders reach it
    credit_bytes: int = 0
    codecs: Mapping[str, Codec] = field(default_factory=dict)
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

    def connections(self, count: int) -> None:
        self.notes.note(Gauge("pdd_kv_connections", count))

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
