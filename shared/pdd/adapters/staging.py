"""Bounded memory for KV that has landed and is not imported yet. Only chunks that were expected find a place in it.

A transfer has one buffer for its tokens [start, stop); a chunk of T tokens lies at (chunk start - start) * bytes_per_token, in the
canonical layout of those T tokens. What has landed is never written again, and a dropped transfer's memory is given to nobody
while a late chunk of it may still be written there. Thread-safe.
"""

import hmac
import threading
from bisect import bisect_right
from dataclasses import dataclass, field

from ..core.effects import ExpectKv
from ..core.errors import IllegalEvent
from ..core.ids import Epoch, TransferId
from ..core.wire import Reason
from ..ports import KvChunk, KvShape
from .staging_arena import Arena

ALIGNMENT_ROOM = 64 << 10  # so that a thousand transfers' rounding takes nothing of the budget


@dataclass(slots=True, eq=False)
class Piece:
    """Tokens [start, stop) that have landed, or that one place holds the pen for."""

    start: int
    stop: int
    landed: bool = False


@dataclass(slots=True, eq=False)
class Reserved:
    expected: ExpectKv
    size: int
    shape: KvShape | None = None  # the sender's
    memory: memoryview | None = None
    offset: int = 0  # of `memory` in the arena
    pieces: list[Piece] = field(default_factory=list)  # ascending, disjoint
    claims: int = 0  # places that somebody may be writing to
    dropped: bool = False


@dataclass(slots=True, eq=False)
class Place:
    """Where one chunk's payload goes. A chunk that overlaps what is here is received aside; only `pieces` of it are kept."""

    view: memoryview
    start: int
    stop: int
    owner: Reserved
    pieces: list[Piece]
    aside: bool


class Staging:
    """`shape` is the receiver's own; a sender may have another dtype, not another geometry."""

    def __init__(self, budget_bytes: int, shape: KvShape) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self._shape = shape
        self._arena = Arena(budget_bytes + ALIGNMENT_ROOM)
        self._reserved: dict[TransferId, Reserved] = {}
        self._lock = threading.Lock()

    @property
    def memory(self) -> memoryview:
        """Where every transfer's buffer lies."""
        return self._arena.memory

    # -- the role's side ----------------------------------------------------------------------------------------------

    def expect(self, effect: ExpectKv) -> str | None:
        """Reserve. Idempotent; another epoch, range or secret starts anew. Returns why not, or None."""
        with self._lock:
            known = self._reserved.get(effect.transfer)
            if known and known.expected == effect:
                return None
            if known and effect.epoch < known.expected.epoch:
                return Reason.EPOCH
            self._free(effect.transfer)
            size = (effect.stop - effect.start) * self._shape.bytes_per_token
            if self.used_bytes + size > self.budget_bytes:
                return Reason.MEMORY
            self.used_bytes += size
            self._reserved[effect.transfer] = Reserved(effect, size)
            return None

    def take(self, transfer: TransferId) -> list[KvChunk]:
        """The landed chunks, ascending. Raises IllegalEvent where they leave a gap: the role imports what is whole."""
        with self._lock:
            owner = self._reserved.get(transfer)
            if owner is None:
                raise IllegalEvent(f"no transfer {transfer} is expected")
            at = owner.expected.start
            chunks = []
            for piece in owner.pieces:
                if piece.start != at or not piece.landed:
                    break
                assert owner.shape is not None
                chunks.append(KvChunk(piece.start, piece.stop, owner.shape, _view(owner, piece.start, piece.stop)))
                at = piece.stop
            if at != owner.expected.stop:
                raise IllegalEvent(f"transfer {transfer} has landed up to {at} of {owner.expected.stop}")
            return chunks

    def drop(self, transfer: TransferId) -> None:
        with self._lock:
            self._free(transfer)

    def _free(self, transfer: TransferId) -> None:
        gone = self._reserved.pop(transfer, None)
        if gone:
            self.used_bytes -= gone.size
            gone.dropped = True
            self._give_back_memory(gone)

    def _give_back_memory(self, owner: Reserved) -> None:
        if owner.dropped and not owner.claims and owner.memory is not None:
            self._arena.give_back(owner.offset, owner.size)
            owner.memory = None

    def knows(self, transfer: TransferId) -> bool:
        return transfer in self._reserved

    def whole(self, transfer: TransferId) -> bool:
        """Has everything that was expected landed?"""
        with self._lock:
            owner = self._reserved.get(transfer)
            if owner is None:
                return False
            at = owner.expected.start
            for piece in owner.pieces:
                if piece.start != at or not piece.landed:
                    return False
                at = piece.stop
            return at == owner.expected.stop

    # -- the line's side ----------------------------------------------------------------------------------------------

    def admit(self, transfer: TransferId, epoch: Epoch, secret: bytes, shape: KvShape) -> Reason | None:
        """A sender opens the transfer. Its memory is taken here, and touched only as chunks land."""
        with self._lock:
            owner = self._reserved.get(transfer)
            if owner is None:
                return Reason.UNKNOWN
            if not hmac.compare_digest(owner.expected.secret, secret):
                return Reason.SECRET
            if owner.expected.epoch != epoch:
                return Reason.EPOCH
            if not _same_geometry(shape, self._shape) or owner.shape not in (None, shape):
                return Reason.SHAPE
            if owner.shape is None:
                return self._map(owner, shape)
            return None

    def _map(self, owner: Reserved, shape: KvShape) -> Reason | None:
        size = (owner.expected.stop - owner.expected.start) * shape.bytes_per_token
        if self.used_bytes + size - owner.size > self.budget_bytes:
            return Reason.MEMORY
        taken = self._arena.take(size)
        if taken is None:
            return Reason.MEMORY  # there is enough, in pieces too small
        self.used_bytes += size - owner.size
        owner.size, owner.shape = size, shape
        owner.offset, owner.memory = taken
        return None

    def claim(self, transfer: TransferId, epoch: Epoch, start: int, stop: int) -> Place | Reason:
        """A place for tokens [start, stop); every claim is answered by `land` or `give_back`."""
        with self._lock:
            owner = self._reserved.get(transfer)
            if owner is None or owner.shape is None:
                return Reason.UNKNOWN
            if owner.expected.epoch != epoch:
                return Reason.EPOCH
            if not owner.expected.start <= start < stop <= owner.expected.stop:
                return Reason.RANGE
            taken = [piece for piece in owner.pieces if piece.start < stop and start < piece.stop]
            pieces = [Piece(a, b) for a, b in _gaps(start, stop, taken)]
            if not pieces:
                return Reason.DOUBLE if all(piece.landed for piece in taken) else Reason.BUSY
            place = self._place(owner, start, stop, pieces, bool(taken))
            if isinstance(place, Place):
                owner.claims += 1
                for piece in pieces:
                    owner.pieces.insert(bisect_right(owner.pieces, piece.start, key=lambda other: other.start), piece)
            return place

    def _place(self, owner: Reserved, start: int, stop: int, pieces: list[Piece], aside: bool) -> Place | Reason:
        """A chunk whose tokens are partly here is received aside: that memory is staging's too."""
        if not aside:
            return Place(_view(owner, start, stop), start, stop, owner, pieces, aside=False)
        assert owner.shape is not None
        size = (stop - start) * owner.shape.bytes_per_token
        if self.used_bytes + size > self.budget_bytes:
            return Reason.BUSY
        self.used_bytes += size
        return Place(memoryview(bytearray(size)), start, stop, owner, pieces, aside=True)

    def land(self, place: Place) -> list[tuple[int, int]]:
        """The payload is verified. Returns the token ranges that are new; none where the transfer was dropped meanwhile."""
        with self._lock:
            self._leave(place)
            if place.owner.dropped:
                return []
            for piece in place.pieces:
                if place.aside:
                    _copy_piece(place, piece)
                piece.landed = True
            return [(piece.start, piece.stop) for piece in place.pieces]

    def give_back(self, place: Place) -> None:
        with self._lock:
            self._leave(place)
            for piece in place.pieces:
                if not piece.landed:
                    place.owner.pieces.remove(piece)

    def _leave(self, place: Place) -> None:
        place.owner.claims -= 1
        if place.aside:
            self.used_bytes -= place.view.nbytes
        self._give_back_memory(place.owner)


def _view(owner: Reserved, start: int, stop: int) -> memoryview:
    assert owner.memory is not None and owner.shape is not None
    per_token, first = owner.shape.bytes_per_token, owner.expected.start
    return owner.memory[(start - first) * per_token : (stop - first) * per_token]


def _same_geometry(one: KvShape, other: KvShape) -> bool:
    return (one.layers, one.kv_heads, one.head_dim) == (other.layers, other.kv_heads, other.head_dim)


def _gaps(start: int, stop: int, taken: list[Piece]) -> list[tuple[int, int]]:
    """What of [start, stop) no piece of `taken` (ascending) covers."""
    gaps, at = [], start
    for piece in taken:
        if at < piece.start:
            gaps.append((at, piece.start))
        at = max(at, piece.stop)
    if at < stop:
        gaps.append((at, stop))
    return gaps


def _copy_piece(place: Place, piece: Piece) -> None:
    """Tokens [piece.start, piece.stop) of a chunk as a chunk of their own: one run of bytes in each layer."""
    assert place.owner.shape is not None
    layers = place.owner.shape.layers
    token = place.owner.shape.bytes_per_token // layers
    run, stride = (piece.stop - piece.start) * token, (place.stop - place.start) * token
    first = (piece.start - place.start) * token
    target = _view(place.owner, piece.start, piece.stop)
    for layer in range(layers):
        source = layer * stride + first
        target[layer * run : (layer + 1) * run] = place.view[source : source + run]
