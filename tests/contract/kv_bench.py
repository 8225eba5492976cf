"""Links on a bench: a sender at site A, a receiver at site B, a line between them that can be slowed, stalled, cut or made to err.

The same questions are put to both adapters; over TCP `until` waits for real events, in memory it runs the virtual clock.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache, partial

from pdd.adapters.kv_codecs import codecs
from pdd.adapters.kv_memory import MemoryKvLink
from pdd.adapters.kv_memory_lines import Fault, MemoryLines, Parcel
from pdd.adapters.kv_nixl import NixlCarrier
from pdd.adapters.kv_tcp import TcpKvLink
from pdd.adapters.kv_tcp_socket import TcpOptions
from pdd.adapters.staging import Staging
from pdd.core.effects import CloseTransfer, ExpectKv, OfferKv, OpenTransfer
from pdd.core.events import KvLanded
from pdd.core.ids import Epoch, Key, Peer, TransferId
from pdd.ports import KvChunk, KvLink, KvShape
from pdd.sim.world import World
from tests.contract.kv_ends import KEY, NIXL_SMALL_BYTES, SECRET, SHAPE, SILENCE_S, E, End, Pages, T, ends
from tests.contract.kv_relay import Relay

__all__ = ["KEY", "SECRET", "SHAPE", "SILENCE_S", "End", "Pages", "T", "ends"]


class Bench(ABC):
    """`sender` and `receiver` are ends; `address` is where the sender finds the receiver: through the line."""

    sender: End
    receiver: End
    address: str
    staging: Staging
    near = False

    @abstractmethod
    def until(self, done: Callable[[], bool], seconds: float = 10.0) -> None: ...

    @abstractmethod
    def err(self, fault: Fault) -> None: ...

    @abstractmethod
    def slow(self) -> None:
        """A line on which a hundred chunks take a noticeable while."""

    @abstractmethod
    def stall(self) -> None: ...

    @abstractmethod
    def cut(self) -> None: ...

    @abstractmethod
    def restore(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    # -- what tests say -----------------------------------------------------------------------------------------------

    def expect(self, start: int, stop: int, transfer: TransferId = T, secret: bytes = SECRET, epoch: int = 1) -> None:
        self._at(self.receiver).expect(ExpectKv(transfer, Epoch(epoch), secret, start, stop))

    def open(
        self, transfer: TransferId = T, secret: bytes = SECRET, key: Key = KEY, receiver: Peer | None = None
    ) -> None:
        to = receiver or self.receiver.peer
        self._at(self.sender).open_transfer(
            OpenTransfer(transfer, key, to, self.address, secret, "00-trace", near=self.near)
        )

    def offer(self, start: int, stop: int, transfer: TransferId = T) -> None:
        self._at(self.sender).offer(OfferKv(transfer, start, stop))

    def finish(self, closing: bytes = b"token 0", transfer: TransferId = T) -> None:
        self._at(self.sender).close_transfer(CloseTransfer(transfer, closing))

    def cancel(self, transfer: TransferId = T) -> None:
        self._at(self.sender).cancel(transfer)

    def taken(self, transfer: TransferId = T) -> list[KvChunk]:
        return self._at(self.receiver).take(transfer)

    def drop(self, transfer: TransferId = T) -> None:
        self._at(self.receiver).drop(transfer)

    def missing(self, start: int, stop: int, transfer: TransferId = T) -> list[tuple[int, int]]:
        """What of [start, stop) has not landed: as a receiver's ticket would name it."""
        gaps, at = [], start
        landed = [event for event in self.receiver.all(KvLanded) if event.transfer == transfer]
        for begin, end in sorted((event.start, event.stop) for event in landed):
            if at < begin:
                gaps.append((at, begin))
            at = max(at, end)
        return [*gaps, (at, stop)] if at < stop else gaps

    def reopen(self, start: int, stop: int) -> None:
        """What P does on a ticket: the rest, and the closing frame."""
        self.open()
        for begin, end in self.missing(start, stop):
            self.offer(begin, end)
        self.finish()

    def until_event(self, end: End, kind: type[E], times: int = 1, seconds: float = 10.0) -> E:
        self.until(lambda: len(end.all(kind)) >= times, seconds)
        return end.all(kind)[times - 1]

    def _at(self, end: End) -> KvLink:
        assert end.link is not None
        return end.link


class MemoryBench(Bench):
    def __init__(
        self,
        staging_bytes: int,
        chunk_tokens: int,
        shape: KvShape = SHAPE,
        fingerprints: tuple[str, str] = ("f", "f"),
        streams: int = 3,
    ) -> None:
        self.world = World()
        self.lines = MemoryLines(self.world)
        self.lines.shape("a", "b", 1e9, 0.002)
        self.sender, self.receiver = ends(shape)
        self.address = "md"
        for end, address, fingerprint in zip((self.sender, self.receiver), ("p", "md"), fingerprints, strict=True):
            end.link = MemoryKvLink(
                end.peer, self.lines, address=address, fingerprint=fingerprint, source=end.pages, sink=end.sink,
                notes=end.notes, staging_bytes=staging_bytes, chunk_tokens_max=chunk_tokens, silence_s=SILENCE_S,
                connect_s=SILENCE_S, streams=streams,
            )  # fmt: skip
        assert isinstance(self.receiver.link, MemoryKvLink)
        self.staging = self.receiver.link.staging

    def until(self, done: Callable[[], bool], seconds: float = 10.0) -> None:
        assert done() or self.world.run(self.world.now() + seconds, done), self.receiver.events + self.sender.events

    def err(self, fault: Fault) -> None:
        self.lines.fault = fault

    def slow(self) -> None:
        self.lines.shape("a", "b", 100e3, 0.002)

    def stall(self) -> None:
        self.lines.stall("a", "b")

    def cut(self) -> None:
        self.lines.cut("a", "b")

    def restore(self) -> None:
        self.lines.restore("a", "b")

    def close(self) -> None:
        for end in (self.sender, self.receiver):
            assert isinstance(end.link, MemoryKvLink)
            end.link.close()
        self.world.run(self.world.now() + 60)
        assert not self.lines.connections()


class Monotonic:
    now = staticmethod(time.monotonic)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        raise NotImplementedError("links over TCP have threads of their own")


@cache
def carrier_of(name: str) -> NixlCarrier:
    """Making an agent takes a second or more: each end keeps one for all tests."""
    return NixlCarrier(NIXL_SMALL_BYTES, 32 << 20)


@cache
def connect_carriers() -> None:
    """The first read between two agents takes a second or more, as long as a test's silence."""
    payload = memoryview(bytes(2 * NIXL_SMALL_BYTES))
    lent = carrier_of("p").lend(payload, "float32")
    carrier_of("md").read(lent[0], memoryview(bytearray(payload.nbytes)), "float32")
    carrier_of("p").take_back(lent)


class TcpBench(Bench):
    def __init__(
        self,
        staging_bytes: int,
        chunk_tokens: int,
        shape: KvShape = SHAPE,
        fingerprints: tuple[str, str] = ("f", "f"),
        streams: int = 3,
        packs: tuple[bool, bool] = (False, False),
        nixl: bool = False,
    ) -> None:
        self.sender, self.receiver = ends(shape)
        self.near = nixl
        if nixl:
            connect_carriers()
        self.options = TcpOptions(
            connect_s=SILENCE_S, silence_s=SILENCE_S, backoff_s=0.02, backoff_max_s=0.1, streams_far=streams, streams_near=streams
        )  # fmt: skip
        for end, fingerprint, pack in zip((self.sender, self.receiver), fingerprints, packs, strict=True):
            end.link = TcpKvLink(
                end.peer, listen=("127.0.0.1", 0), fingerprint=fingerprint, source=end.pages, sink=end.sink,
                notes=end.notes, clock=Monotonic(), staging_bytes=staging_bytes, chunk_tokens_max=chunk_tokens,
                options=self.options, codecs=codecs() if pack else {},
                carrier=carrier_of(end.peer.name) if nixl else None,
            )  # fmt: skip
            end.link.start()
        assert isinstance(self.receiver.link, TcpKvLink)
        self.staging = self.receiver.link.staging
        self.relay = Relay(self.receiver.link.address)
        self.address = self.relay.address

    def until(self, done: Callable[[], bool], seconds: float = 10.0) -> None:
        limit = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < limit, self.receiver.events + self.sender.events
            with self.receiver.changed:
                self.receiver.changed.wait(0.01)

    def err(self, fault: Fault) -> None:
        self.relay.fault = fault

    def slow(self) -> None:
        gate, healthy = threading.Event(), self.relay.fault

        def slowly(parcel: Parcel) -> list[Parcel]:
            gate.wait(0.004)  # never set: a line's time, not a test's
            return healthy(parcel)

        self.relay.fault = slowly

    def stall(self) -> None:
        self.relay.stall()

    def cut(self) -> None:
        self.relay.cut()

    def restore(self) -> None:
        self.relay.restore()

    def close(self) -> None:
        for end in (self.sender, self.receiver):
            assert isinstance(end.link, TcpKvLink)
            end.link.close()
        self.relay.cut()


BENCHES: dict[str, Callable[..., Bench]] = {
    "memory": MemoryBench,
    "tcp": TcpBench,
    "nixl": partial(TcpBench, nixl=True),
}
