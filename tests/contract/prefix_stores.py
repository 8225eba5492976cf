"""Prefix stores to try, over a Redis-compatible server and in memory, for the contract tests."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Any

import redis.asyncio

from pdd.adapters.local_servers import LocalServer
from pdd.adapters.notes_memory import MemoryNotes
from pdd.adapters.prefix_memory import MemoryPrefixStore
from pdd.adapters.prefix_redis import RedisPrefixStore
from pdd.core.blocks import HASH_BYTES
from pdd.core.effects import FindPrefix, KeepHolder, ReplaceBlocks
from pdd.core.events import Event, PrefixFound, StoreFailed
from pdd.core.ids import BlockHash, Peer, RequestId, Role
from pdd.runtime.driver import LoopClock

WAIT_S = 5.0
ROUTER = Peer("a", Role.ROUTER, "r-1", 7)
P1, P2 = Peer("a", Role.PREFILL, "p-1", 2**62 + 1), Peer("a", Role.PREFILL, "p-2", 5)
P1_LATER = Peer("a", Role.PREFILL, "p-1", 2**62 + 2)  # one more: as floats the two would be equal
namespaces = map(str, count())


def chain(length: int, name: str = "") -> tuple[BlockHash, ...]:
    return tuple(hash_of(f"{name}{i}") for i in range(length))


def hash_of(text: str) -> BlockHash:
    return BlockHash(blake2b(text.encode(), digest_size=HASH_BYTES).digest())


@dataclass
class Bench:
    """A store, what it answered, and the means to take it away."""

    store: Any = None
    down: Callable[[], None] = lambda: None
    up: Callable[[], None] = lambda: None
    flush: Callable[[], Coroutine[Any, Any, None]] | None = None
    notes: MemoryNotes = field(default_factory=MemoryNotes)
    found: asyncio.Queue[PrefixFound] = field(default_factory=asyncio.Queue)
    failed: asyncio.Queue[StoreFailed] = field(default_factory=asyncio.Queue)

    def sink(self, event: Event) -> None:
        if isinstance(event, PrefixFound):
            self.found.put_nowait(event)
        else:
            assert isinstance(event, StoreFailed)
            self.failed.put_nowait(event)

    async def holders(self, *blocks: BlockHash) -> dict[str, int]:
        self.store.find(FindPrefix(RequestId("q"), ROUTER, blocks))
        found = await asyncio.wait_for(self.found.get(), WAIT_S)
        assert (found.query, found.asker) == ("q", ROUTER)
        assert list(found.holders) == sorted(found.holders)
        self.incarnations = {name: incarnation for name, incarnation, _ in found.holders}
        return {name: blocks for name, _, blocks in found.holders}

    async def failure(self) -> StoreFailed:
        return await asyncio.wait_for(self.failed.get(), WAIT_S)

    async def admit(self, holder: Peer, *blocks: BlockHash) -> None:
        self.store.keep(KeepHolder(holder, 60))
        assert await self.failure() == StoreFailed("unknown holder", holder)
        self.store.replace(ReplaceBlocks(holder, blocks))


@asynccontextmanager
async def in_memory() -> AsyncIterator[Bench]:
    bench = Bench()
    store = MemoryPrefixStore(bench.sink, bench.notes, LoopClock(asyncio.get_running_loop()))

    async def flush() -> None:
        store.flush()

    bench.store, bench.flush = store, flush
    bench.down, bench.up = lambda: setattr(store, "down", True), lambda: setattr(store, "down", False)
    yield bench


@asynccontextmanager
async def on_redis(server: LocalServer, namespace: str = "", timeout_s: float = 1.0) -> AsyncIterator[Bench]:
    bench = Bench()
    store = RedisPrefixStore(server.url, namespace or next(namespaces), bench.sink, bench.notes, timeout_s=timeout_s)

    async def flush() -> None:
        async with raw(server) as client:
            await client.flushall()

    bench.store, bench.flush, bench.down, bench.up = store, flush, server.kill, server.start
    await store.connect()
    try:
        yield bench
    finally:
        await store.close()


@asynccontextmanager
async def raw(server: LocalServer) -> AsyncIterator[Any]:
    client = redis.asyncio.Redis.from_url(server.url)
    try:
        yield client
    finally:
        await client.aclose()


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))
