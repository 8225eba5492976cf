"""The prefix store over Redis 7+ or Valkey: one round trip finds the longest prefix of every live holder.

Calls are carried out in the order in which they were made, batched into pipelines by one task. A round trip takes at most
`timeout_s`, and no call waits for more than two. An outage, and a Redis that lost its memory, become StoreFailed events;
the client reconnects by itself.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from types import NoneType
from typing import Any

import redis.exceptions
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from ..core.blocks import HASH_BYTES, pack
from ..core.effects import Count, FindPrefix, KeepHolder, ReplaceBlocks, StoreBlocks
from ..core.events import Event, PrefixFound, StoreFailed
from ..core.ids import BlockHash, Peer
from ..ports import Notes, Sink
from .prefix_memory import FIRST_TTL_S, UNKNOWN
from .prefix_redis_scripts import SCRIPTS

TIMEOUT_S = 1.0
SCRIPT_HASHES = 2_000  # one script holds up everyone else's calls for about 8 ms
BATCH_HASHES = 16_000
BATCH_CALLS = 256
MOST_QUEUED = 4_096
SWEEP_EVERY_S = 5.0  # when nothing is known to be left to sweep
SWEEP_KEYS = 500
FORGET_AFTER_S = 600.0  # a holder that was not kept for so long gives its slot back

Asked = StoreBlocks | ReplaceBlocks | KeepHolder | FindPrefix
CALLS = {StoreBlocks: "store", ReplaceBlocks: "replace", KeepHolder: "keep", FindPrefix: "find", NoneType: "sweep"}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Call:
    """One script. `effect` is None for the store's own sweeping."""

    script: str
    args: tuple[str | bytes | int, ...]
    effect: Asked | None = None
    hashes: int = 0


class RedisPrefixStore:
    """Create, `await connect()`, use from the loop's thread, `await close()`. `namespace`: the model's fingerprint."""

    def __init__(
        self,
        url: str,
        namespace: str,
        sink: Sink,
        notes: Notes,
        *,
        timeout_s: float = TIMEOUT_S,
        password: str | None = None,
    ) -> None:
        self._ns = f"pdd:{{{blake2b(namespace.encode(), digest_size=8).hexdigest()}}}:"
        self._sink, self._notes, self._timeout_s = sink, notes, timeout_s
        self._redis: Any = Redis.from_url(
            url,
            password=password,
            socket_timeout=None,  # each round trip is bounded as a whole, below
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),  # a failed call is answered, not repeated: the index asks for a snapshot
        )
        self._queue: deque[_Call] = deque()
        self._wake = asyncio.Event()
        self._worker: asyncio.Task[None] | None = None
        self._sweeping = self._closing = False
        self._failed: Asked | None = None
        self.connected = False

    async def connect(self) -> None:
        """Returns after the first try, whether Redis was there or not."""
        with suppress(OSError, TimeoutError, redis.exceptions.RedisError):
            async with asyncio.timeout(self._timeout_s):
                await self._load_scripts()
                self.connected = True
        if not self.connected:
            log.warning("prefix store: no Redis yet")
        self._worker = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Carries out what was asked for, unless Redis does not answer."""
        self._closing = True
        self._wake.set()
        if self._worker is not None:
            await self._worker  # not cancelled: redis-py can take a cancellation for a time-out of its own
        await self._redis.aclose()

    # -- the port -----------------------------------------------------------------------------------------------------

    def store(self, effect: StoreBlocks) -> None:
        """A block that stands in both lists is not held."""
        name, incarnation = _identity(effect.holder)
        stored, removed = list(_parts(effect.stored)), list(_parts(effect.removed))
        if len(effect.stored) + len(effect.removed) <= SCRIPT_HASHES:
            changes = [(pack(effect.stored), pack(effect.removed))]
        else:
            changes = [(part, b"") for part in stored] + [(b"", part) for part in removed]
        self._post([self._change(name, incarnation, effect, *change) for change in changes])

    def replace(self, effect: ReplaceBlocks) -> None:
        name, incarnation = _identity(effect.holder)
        first = _Call("replace", (name, incarnation, _ms(FIRST_TTL_S)), effect)
        self._post([first, *(self._change(name, incarnation, effect, part, b"") for part in _parts(effect.blocks))])

    def keep(self, effect: KeepHolder) -> None:
        self._post([_Call("keep", (*_identity(effect.holder), _ms(effect.ttl_s)), effect)])

    def find(self, effect: FindPrefix) -> None:
        if not effect.blocks:
            self._sink(PrefixFound(effect.query, effect.asker, ()))
            return
        self._post([_Call("find", (pack(effect.blocks),), effect, 1)])

    def _change(self, name: str, incarnation: str, effect: Asked, stored: bytes, removed: bytes) -> _Call:
        hashes = (len(stored) + len(removed)) // HASH_BYTES
        return _Call("change", (name, incarnation, stored, removed), effect, hashes)

    def _post(self, calls: list[_Call]) -> None:
        if len(self._queue) + len(calls) > MOST_QUEUED:
            self._fail(calls[0], "too many calls are waiting")
            return
        self._queue.extend(calls)
        self._wake.set()

    # -- the one task that talks to Redis -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while self._queue or not self._closing:
            if not self._queue and not self._sweeping:
                with suppress(TimeoutError):
                    async with asyncio.timeout(SWEEP_EVERY_S):
                        await self._wake.wait()
            self._wake.clear()
            batch = self._next_batch()
            if self._sweeping or not batch:
                batch.append(_Call("sweep", (_ms(FORGET_AFTER_S), SWEEP_KEYS)))
            await self._carry_out(batch)

    def _next_batch(self) -> list[_Call]:
        batch: list[_Call] = []
        hashes = 0
        while self._queue and len(batch) < BATCH_CALLS and hashes < BATCH_HASHES:
            batch.append(self._queue.popleft())
            hashes += batch[-1].hashes
        return batch

    async def _carry_out(self, batch: list[_Call]) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                replies = await self._pipeline(batch)
                if any(isinstance(reply, redis.exceptions.NoScriptError) for reply in replies):
                    await self._load_scripts()  # a restarted Redis; all of the batch can be said twice
                    replies = await self._pipeline(batch)
        except Exception as error:  # whatever the client stumbles over, every call is answered and the task goes on
            await self._lost(batch, error)
            return
        if not self.connected:
            self.connected = True
            log.info("prefix store: Redis answers")
        for call, reply in zip(batch, replies, strict=True):
            self._answer(call, reply)

    async def _pipeline(self, batch: list[_Call]) -> list[Any]:
        pipeline = self._redis.pipeline(transaction=False)
        for call in batch:
            pipeline.execute_command("EVALSHA", SCRIPTS[call.script].sha, 1, self._ns, *call.args)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    async def _load_scripts(self) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        for script in SCRIPTS.values():
            pipeline.execute_command("SCRIPT LOAD", script.text)
        await pipeline.execute()

    async def _lost(self, batch: list[_Call], error: Exception) -> None:
        """Whatever waited behind the failed batch has waited as long: it fails too, and nobody waits twice."""
        if self.connected:
            log.warning("prefix store: Redis does not answer: %r", error)
        self.connected = self._sweeping = False
        for call in [*batch, *self._queue]:
            self._fail(call, f"Redis does not answer: {error!r}")
        self._queue.clear()
        with suppress(OSError, redis.exceptions.RedisError):
            await self._redis.connection_pool.disconnect()

    def _answer(self, call: _Call, reply: Any) -> None:
        if isinstance(reply, Exception):
            self._fail(call, str(reply))
        elif isinstance(call.effect, FindPrefix):
            self._sink(_found(call.effect, reply))
        elif call.effect is None:
            self._sweeping = bool(reply)
        elif reply == b"unknown":
            self._sink(StoreFailed(UNKNOWN, call.effect.holder))
        elif reply == b"full":
            self._fail(call, "all slots are taken")
        elif call.script == "replace":
            self._sweeping = True

    def _fail(self, call: _Call, reason: str) -> None:
        """Once for each effect: its calls stand one behind the other."""
        if call.effect is not None and call.effect is self._failed:
            return
        self._failed = call.effect
        self._notes.note(Count("pdd_prefix_store_failures_total", (("call", CALLS[type(call.effect)]),)))
        match call.effect:
            case FindPrefix(query, asker):
                self._sink(StoreFailed(reason, query=query, asker=asker))
            case StoreBlocks(holder) | ReplaceBlocks(holder):
                self._sink(StoreFailed(reason, holder))
            case _:  # the next beat keeps the holder, the next pass sweeps
                self._sweeping = False


def _found(effect: FindPrefix, reply: list[Any]) -> Event:
    rows = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    holders = sorted((name.decode(), int(incarnation), blocks) for name, incarnation, blocks in rows)
    return PrefixFound(effect.query, effect.asker, tuple(holders))


def _identity(holder: Peer) -> tuple[str, str]:
    return holder.name, f"{holder.incarnation:020d}"


def _parts(blocks: tuple[BlockHash, ...]) -> Iterator[bytes]:
    for start in range(0, len(blocks), SCRIPT_HASHES):
        yield pack(blocks[start : start + SCRIPT_HASHES])


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
