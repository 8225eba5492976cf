"""Both ends of a link under test: an engine's pages with known content, and all that the link says."""

import threading
from dataclasses import dataclass, field
from typing import TypeVar

from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.events import Event, KvLanded
from pdd.core.ids import Epoch, Key, Peer, RequestId, Role, TransferId
from pdd.ports import KvChunk, KvLink, KvShape

SHAPE = KvShape(layers=3, kv_heads=2, head_dim=8, dtype="float32")  # 384 bytes a token
KEY = Key(RequestId("r1"), Epoch(1))
T = TransferId("r1.1.md.1")
SECRET = b"0123456789abcdef"
SILENCE_S = 1.0
NIXL_SMALL_BYTES = 2000
E = TypeVar("E", bound=Event)


class Pages:
    """An engine's side: KV of any token of an open sequence, different in each layer and token. `exported` remembers the asks."""

    def __init__(self, shape: KvShape = SHAPE, tokens: int = 4096) -> None:
        self.kv_shape = shape
        self.open: set[Key] = {KEY}
        self.exported: list[tuple[int, int]] = []
        self._per = shape.bytes_per_token // shape.layers
        self._layers = [
            b"".join(
                ((layer * 7919 + token) % 65521).to_bytes(2, "little") * (self._per // 2) for token in range(tokens)
            )
            for layer in range(shape.layers)
        ]

    def layer(self, layer: int, start: int, stop: int) -> bytes:
        return self._layers[layer][start * self._per : stop * self._per]

    def export_kv(self, key: Key, start: int, stop: int) -> KvChunk:
        if key not in self.open:
            raise KeyError(key)
        self.exported.append((start, stop))
        data = b"".join(self.layer(layer, start, stop) for layer in range(self.kv_shape.layers))
        return KvChunk(start, stop, self.kv_shape, memoryview(data))

    def equal(self, chunks: list[KvChunk], start: int, stop: int) -> bool:
        """Do the chunks hold exactly tokens [start, stop)?"""
        layers = [b""] * self.kv_shape.layers
        at = start
        for chunk in chunks:
            assert chunk.start == at and chunk.shape == self.kv_shape
            run = (chunk.stop - chunk.start) * self._per
            for layer in range(self.kv_shape.layers):
                layers[layer] += bytes(chunk.data[layer * run : (layer + 1) * run])
            at = chunk.stop
        return at == stop and layers == [self.layer(layer, start, stop) for layer in range(self.kv_shape.layers)]


@dataclass
class End:
    """One process's link, and what it said."""

    peer: Peer
    pages: Pages
    notes: MemoryNotes = field(default_factory=MemoryNotes)
    events: list[Event] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    link: KvLink | None = None

    def sink(self, event: Event) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def all(self, kind: type[E]) -> list[E]:
        return [event for event in list(self.events) if isinstance(event, kind)]

    def dropped(self, reason: str) -> float:
        return self.notes.total("pdd_kv_frames_dropped_total", reason=reason)

    def landed_tokens(self, transfer: TransferId = T) -> int:
        return sum(event.stop - event.start for event in self.all(KvLanded) if event.transfer == transfer)


def ends(receiver_shape: KvShape) -> tuple[End, End]:
    sender = End(Peer("a", Role.PREFILL, "p", 1), Pages())
    receiver = End(Peer("b", Role.MAIN, "md", 1), Pages(receiver_shape, tokens=1))
    return sender, receiver
