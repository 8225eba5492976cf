"""The seams. Anything that touches the world satisfies one of these; `Ports.perform` is the one place that routes effects.

A port call returns at once. What comes of it returns later as an event, through the `Sink` the adapter was built with.
Adapters may call the sink from their own thread only where they say so; the live driver's sink is thread-safe.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .core import effects as fx
from .core.events import Event
from .core.ids import Key, Peer, TransferId
from .core.messages import Message

Sink = Callable[[Event], None]


class Clock(Protocol):
    def now(self) -> float:
        """Seconds, monotonic, of this process alone."""

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None: ...


class Bus(Protocol):
    def send(self, to: Peer, message: Message, traceparent: str) -> None: ...

    def broadcast(self, message: Message) -> None: ...


@dataclass(frozen=True, slots=True)
class KvShape:
    """Canonical layout of one chunk: [layers, tokens, 2 (K, V), kv_heads, head_dim], C order, little endian."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str  # float32 | bfloat16 | float16

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim * (4 if self.dtype == "float32" else 2)


@dataclass(frozen=True, slots=True)
class KvChunk:
    """Tokens [start, stop) in the canonical layout of `shape` (the sender's dtype)."""

    start: int
    stop: int
    shape: KvShape
    data: memoryview  # exactly (stop - start) * shape.bytes_per_token bytes


class KvSource(Protocol):
    """The engine's side of sending. Called from the link's threads: pages of computed tokens never change while open."""

    @property
    def kv_shape(self) -> KvShape: ...

    def export_kv(self, key: Key, start: int, stop: int) -> KvChunk:
        """Raises KeyError when the sequence is closed."""


class Engine(KvSource, Protocol):
    def open(self, effect: fx.OpenSequence) -> None: ...

    def import_kv(self, key: Key, chunks: list[KvChunk], done: Callable[[], None]) -> None:
        """`done` is called when the chunks' memory is no longer needed, whatever the outcome."""

    def append_ids(self, effect: fx.AppendIds) -> None: ...

    def speak(self, effect: fx.Speak) -> None: ...

    def hush(self, key: Key) -> None: ...

    def close(self, key: Key) -> None: ...


class KvLink(Protocol):
    def expect(self, effect: fx.ExpectKv) -> None: ...

    def take(self, transfer: TransferId) -> list[KvChunk]:
        """The landed chunks, ascending and without gap or overlap. They stay valid until `drop`."""

    def drop(self, transfer: TransferId) -> None: ...

    def open_transfer(self, effect: fx.OpenTransfer) -> None: ...

    def offer(self, effect: fx.OfferKv) -> None: ...

    def close_transfer(self, effect: fx.CloseTransfer) -> None: ...

    def cancel(self, transfer: TransferId) -> None: ...

    def pace(self, effect: fx.PaceLine) -> None: ...


class PrefixStore(Protocol):
    def store(self, effect: fx.StoreBlocks) -> None: ...

    def replace(self, effect: fx.ReplaceBlocks) -> None: ...

    def keep(self, effect: fx.KeepHolder) -> None: ...

    def find(self, effect: fx.FindPrefix) -> None: ...


class Text(Protocol):
    """The router's text layer: what the client sees."""

    def deliver(self, effect: fx.Deliver) -> None: ...

    def complete(self, effect: fx.Complete) -> None: ...

    def reject(self, effect: fx.Reject) -> None: ...


class Notes(Protocol):
    def note(self, effect: fx.Count | fx.Gauge | fx.Observe | fx.Span) -> None: ...


class Machine(Protocol):
    """A role. Nothing but `start` and `handle` changes it."""

    @property
    def deadline(self) -> float | None:
        """When it wants TimerFired, at the latest."""

    def start(self, now: float) -> list[fx.Effect]: ...

    def handle(self, event: Event, now: float) -> list[fx.Effect]: ...


@dataclass(slots=True)
class Ports:
    """What one process has. A role that asks for a port it was not given is a wiring error, and raises."""

    bus: Bus
    notes: Notes
    engine: Engine | None = None
    kv: KvLink | None = None
    store: PrefixStore | None = None
    text: Text | None = None

    def perform(self, effect: fx.Effect) -> None:
        match effect:
            case fx.Send(to, message, traceparent):
                self.bus.send(to, message, traceparent)
            case fx.Broadcast(message):
                self.bus.broadcast(message)
            case fx.Count() | fx.Gauge() | fx.Observe() | fx.Span():
                self.notes.note(effect)
            case _:
                if not self._perform_at_own(effect):
                    raise TypeError(f"no port here for {type(effect).__name__}")

    def _perform_at_own(self, effect: fx.Effect) -> bool:
        """By identity, not by truth: a port that holds nothing at the moment may well be empty, and is still a port."""
        if self.engine is not None and self.kv is not None and _perform_at_worker(self.engine, self.kv, effect):
            return True
        if self.text is not None and _perform_at_text(self.text, effect):
            return True
        return self.store is not None and _perform_at_store(self.store, effect)


def _perform_at_worker(engine: Engine, kv: KvLink, effect: fx.Effect) -> bool:
    match effect:
        case fx.OpenSequence():
            engine.open(effect)
        case fx.AppendIds():
            engine.append_ids(effect)
        case fx.Speak():
            engine.speak(effect)
        case fx.Hush(key):
            engine.hush(key)
        case fx.CloseSequence(key):
            engine.close(key)
        case fx.ImportKv(key, transfer):
            engine.import_kv(key, kv.take(transfer), lambda: kv.drop(transfer))
        case fx.ExpectKv():
            kv.expect(effect)
        case fx.DropKv(transfer):
            kv.drop(transfer)
        case fx.OpenTransfer():
            kv.open_transfer(effect)
        case fx.OfferKv():
            kv.offer(effect)
        case fx.CloseTransfer():
            kv.close_transfer(effect)
        case fx.CancelTransfer(transfer):
            kv.cancel(transfer)
        case fx.PaceLine():
            kv.pace(effect)
        case _:
            return False
    return True


def _perform_at_text(text: Text, effect: fx.Effect) -> bool:
    match effect:
        case fx.Deliver():
            text.deliver(effect)
        case fx.Complete():
            text.complete(effect)
        case fx.Reject():
            text.reject(effect)
        case _:
            return False
    return True


def _perform_at_store(store: PrefixStore, effect: fx.Effect) -> bool:
    match effect:
        case fx.StoreBlocks():
            store.store(effect)
        case fx.ReplaceBlocks():
            store.replace(effect)
        case fx.KeepHolder():
            store.keep(effect)
        case fx.FindPrefix():
            store.find(effect)
        case _:
            return False
    return True
