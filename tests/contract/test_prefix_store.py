"""What every prefix store promises, over a real Redis-compatible server and in memory; then what only Redis has."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdd.adapters.local_servers import LocalServer, free_port, redis_server
from pdd.adapters.notes_memory import MemoryNotes
from pdd.adapters.prefix_memory import MemoryPrefixStore
from pdd.adapters.prefix_redis import RedisPrefixStore
from pdd.core.blocks import HASH_BYTES
from pdd.core.effects import FindPrefix, KeepHolder, ReplaceBlocks, StoreBlocks
from pdd.core.events import Event, PrefixFound, StoreFailed
from pdd.core.ids import BlockHash, Peer, RequestId, Role
from pdd.runtime.driver import LoopClock

WAIT_S = 5.0
ROUTER = Peer("a", Role.ROUTER, "r-1", 7)
P1, P2 = Peer("a", Role.PREFILL, "p-1", 2**62 + 1), Peer("a", Role.PREFILL, "p-2", 5)
P1_LATER = Peer("a", Role.PREFILL, "p-1", 2**62 + 2)  # one more: as floats the two would be equal
namespaces = map(str, count())


def chain(length: int, name: str = "") -> tuple[BlockHash, ...]:
    return tuple(_hash(f"{name}{i}") for i in range(length))


def _hash(text: str) -> BlockHash:
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


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    data = tmp_path_factory.mktemp("redis")
    with LocalServer(redis_server("redis", free_port(), data), data / "redis.log") as running:
        yield running


@pytest.fixture(params=["memory", "redis"])
def a_store(request: pytest.FixtureRequest) -> Callable[[], Any]:
    if request.param == "memory":
        return in_memory
    server = request.getfixturevalue("server")
    return lambda: on_redis(server)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))


# -- every store ------------------------------------------------------------------------------------------------------


def test_each_live_holder_is_found_with_its_longest_prefix(a_store: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_store() as bench:
            blocks = chain(9)
            await bench.admit(P1, *blocks[:3])
            await bench.admit(P2, *blocks)
            assert await bench.holders(*blocks, *chain(5, "else")) == {"p-1": 3, "p-2": 9}
            assert bench.incarnations == {"p-1": P1.incarnation, "p-2": P2.incarnation}
            assert await bench.holders(*blocks[:2]) == {"p-1": 2, "p-2": 2}
            assert await bench.holders(*chain(5, "else")) == {}
            assert await bench.holders() == {}

    run(story())


def test_calls_take_effect_in_the_order_in_which_they_were_made(a_store: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_store() as bench:
            await bench.admit(P1)
            blocks = chain(4)
            for length in (4, 1, 3):
                bench.store.store(StoreBlocks(P1, blocks, ()))
                bench.store.store(StoreBlocks(P1, (), blocks[length:]))
                bench.store.find(FindPrefix(RequestId("q"), ROUTER, blocks))
            assert [(await bench.found.get()).holders[0][2] for _ in range(3)] == [4, 1, 3]

    run(story())


def test_a_block_both_stored_and_removed_is_not_held(a_store: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_store() as bench:
            await bench.admit(P1)
            blocks = chain(3)
            bench.store.store(StoreBlocks(P1, blocks, blocks[2:]))
            assert await bench.holders(*blocks) == {"p-1": 2}

    run(story())


def test_thousands_of_blocks_in_one_call(a_store: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_store() as bench:
            blocks, fresh = chain(5_000), chain(4_500, "fresh")
            await bench.admit(P1, *blocks)
            assert await bench.holders(*blocks) == {"p-1": 5_000}
            bench.store.store(StoreBlocks(P1, fresh, blocks[100:]))
            assert await bench.holders(*blocks) == {"p-1": 100}
            assert await bench.holders(*fresh) == {"p-1": 4_500}
            bench.store.replace(ReplaceBlocks(P1, blocks[:2_500]))
            assert await bench.holders(*blocks) == {"p-1": 2_500}
            assert await bench.holders(*fresh) == {}
            assert bench.failed.empty()

    run(story())


def test_a_holder_seen_for_the_first_time_has_no_claims_and_a_snapshot_is_asked_for(a_store: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_store() as bench:
            bench.store.store(StoreBlocks(P1, chain(3), ()))
            assert await bench.failure() == StoreFailed("unknown holder", P1)
            assert await bench.holders(*chain(3)) == {}
            bench.store.keep(KeepHolder(P1, 60))
            assert await bench.failure() == StoreFailed("unknown holder", P1)
            bench.store.keep(KeepHolder(P1, 60))
            assert await bench.holders(*chain(3)) == {}
            assert bench.failed.empty()

    run(story())


def test_a_snapshot_before_the_first_beat_makes_the_holder_known(a_store: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_store() as bench:
            bench.store.replace(ReplaceBlocks(P1, chain(3)))
            bench.store.store(StoreBlocks(P1, chain(4)[3:], ()))
            bench.store.keep(KeepHolder(P1, 60))
            assert await bench.holders(*chain(9)) == {"p-1": 4}
            assert bench.failed.empty()

    run(story())


@pytest.mark.parametrize("first", ["store", "keep", "replace"])
def test_a_newer_incarnation_voids_the_claims_of_the_former_at_once(a_store: Callable[[], Any], first: str) -> None:
    async def story() -> None:
        async with a_store() as bench:
            await bench.admit(P1, *chain(3))
            if first == "store":
                bench.store.store(StoreBlocks(P1_LATER, chain(3)[2:], ()))
            elif first == "keep":
                bench.store.keep(KeepHolder(P1_LATER, 60))
            else:
                bench.store.replace(ReplaceBlocks(P1_LATER, ()))
            assert await bench.holders(*chain(3)) == {}
            assert bench.failed.empty() is (first == "replace")

    run(story())


def test_a_former_life_is_heard_no_more(a_store: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_store() as bench:
            await bench.admit(P1_LATER, *chain(3))
            bench.store.store(StoreBlocks(P1, chain(5), ()))
            bench.store.store(StoreBlocks(P1, (), chain(5)))
            bench.store.keep(KeepHolder(P1, 0))
            bench.store.replace(ReplaceBlocks(P1, ()))
            assert await bench.holders(*chain(5)) == {"p-1": 3}
            assert bench.incarnations == {"p-1": P1_LATER.incarnation}
            assert bench.failed.empty()

    run(story())


def test_a_holder_that_is_not_kept_stops_counting_and_one_kept_again_counts_again(a_store: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_store() as bench:
            await bench.admit(P1, *chain(3))
            bench.store.keep(KeepHolder(P1, 0.2))
            assert await bench.holders(*chain(3)) == {"p-1": 3}
            while await bench.holders(*chain(3)):  # bounded by run()
                await asyncio.sleep(0.01)
            bench.store.store(StoreBlocks(P1, chain(4)[3:], ()))
            bench.store.keep(KeepHolder(P1, 60))
            assert await bench.holders(*chain(4)) == {"p-1": 4}
            assert bench.failed.empty()

    run(story())


def test_a_store_that_lost_its_memory_says_so_at_the_next_change_and_the_next_beat(a_store: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_store() as bench:
            await bench.admit(P1, *chain(3))
            assert await bench.holders(*chain(3)) == {"p-1": 3}
            await bench.flush()
            assert await bench.holders(*chain(3)) == {}
            bench.store.store(StoreBlocks(P1, chain(4)[3:], ()))
            bench.store.keep(KeepHolder(P1, 60))
            for _ in range(2):
                assert await bench.failure() == StoreFailed("unknown holder", P1)
            bench.store.replace(ReplaceBlocks(P1, chain(4)))
            assert await bench.holders(*chain(4)) == {"p-1": 4}

    run(story())


def test_an_outage_fails_changes_by_holder_and_lookups_by_query_and_ends_by_itself(a_store: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_store() as bench:
            await bench.admit(P1, *chain(3))
            assert await bench.holders(*chain(3)) == {"p-1": 3}
            bench.down()
            try:
                bench.store.store(StoreBlocks(P1, chain(4)[3:], ()))
                bench.store.replace(ReplaceBlocks(P2, chain(1)))
                bench.store.find(FindPrefix(RequestId("q"), ROUTER, chain(3)))
                bench.store.keep(KeepHolder(P1, 60))
                failures = [await bench.failure() for _ in range(3)]
            finally:
                bench.up()
            assert {(failure.holder, failure.query, failure.asker) for failure in failures} == {
                (P1, None, None),
                (None, "q", ROUTER),
                (P2, None, None),
            }
            while True:  # the index asks for a snapshot again and again, as here; bounded by run()
                bench.store.replace(ReplaceBlocks(P1, chain(4)))
                if await _answered(bench):
                    break
            assert await bench.holders(*chain(4)) == {"p-1": 4}
            for call in ("find", "keep", "replace"):
                assert bench.notes.total("pdd_prefix_store_failures_total", call=call) > 0

    run(story())


async def _answered(bench: Bench) -> bool:
    bench.store.find(FindPrefix(RequestId("q"), ROUTER, chain(4)))
    done, pending = await asyncio.wait(
        {asyncio.ensure_future(bench.found.get()), asyncio.ensure_future(bench.failed.get())},
        timeout=WAIT_S,
        return_when=asyncio.FIRST_COMPLETED,
    )
    for task in pending:
        task.cancel()
    return any(isinstance(task.result(), PrefixFound) for task in done)


# -- against a naive model --------------------------------------------------------------------------------------------

PATHS = ["".join(path) for depth in range(1, 6) for path in product("lr", repeat=depth)]
LIVES = [Peer("a", Role.PREFILL, name, life) for name in ("p-1", "m-1", "m-2") for life in (1, 2, 2**62)]

paths, lives = st.sampled_from(PATHS), st.sampled_from(LIVES)
traffic = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), lives, paths),
        st.tuples(st.just("evict"), lives, paths),
        st.tuples(st.just("replace"), lives, st.lists(paths, max_size=3)),
        st.tuples(st.just("keep"), lives, st.sampled_from([60.0, 60.0, 0.0])),
        st.tuples(st.just("find"), st.none(), st.sampled_from([path for path in PATHS if len(path) == 5])),
    ),
    max_size=40,
)


def _up_to(path: str) -> list[str]:
    return [path[:stop] for stop in range(1, len(path) + 1)]


def _names(held: list[str]) -> tuple[BlockHash, ...]:
    return tuple(map(_hash, held))


class NaiveStore:
    """By name: the newest life, whether it is alive, and the paths it holds, one by one."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, bool, list[str]]] = {}
        self.unknown = 0

    def hear(self, what: str, peer: Peer, said: Any) -> None:
        life, alive, held = self.known.get(peer.name, (0, False, []))
        if life > peer.incarnation:
            return
        if life < peer.incarnation:
            self.known.pop(peer.name, None)
            self.unknown += what != "replace"
            if what in ("extend", "evict"):
                return
            alive, held = True, []
        if what == "extend":
            held = held + _up_to(said)
        elif what == "evict":
            held = [path for path in held if not path.startswith(said)]
        elif what == "replace":
            held = [prefix for path in said for prefix in _up_to(path)]
        else:
            alive = said > 0
        self.known[peer.name] = (peer.incarnation, alive, held)

    def find(self, path: str) -> dict[str, int]:
        lengths = {
            name: sum(prefix in held for prefix in _up_to(path))
            for name, (_, alive, held) in self.known.items()
            if alive
        }
        return {name: length for name, length in lengths.items() if length}


@given(traffic)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_traffic_gives_the_answers_of_a_naive_store(a_store: Callable[[], Any], traffic: list[Any]) -> None:
    async def story() -> None:
        naive = NaiveStore()
        async with a_store() as bench:
            for what, peer, said in traffic:
                if what == "find":
                    assert await bench.holders(*_names(_up_to(said))) == naive.find(said)
                else:
                    naive.hear(what, peer, said)
                    _tell(bench.store, what, peer, said)
            await bench.holders(*_names(["l"]))
            assert bench.failed.qsize() == naive.unknown

    run(story())


def _tell(store: Any, what: str, peer: Peer, said: Any) -> None:
    if what == "extend":
        store.store(StoreBlocks(peer, _names(_up_to(said)), ()))
    elif what == "evict":
        store.store(StoreBlocks(peer, (), _names([path for path in PATHS if path.startswith(said)])))
    elif what == "replace":
        store.replace(ReplaceBlocks(peer, _names([prefix for path in said for prefix in _up_to(path)])))
    else:
        store.keep(KeepHolder(peer, said))


# -- Redis alone ------------------------------------------------------------------------------------------------------


def test_models_do_not_share_claims(server: LocalServer) -> None:
    async def story() -> None:
        async with on_redis(server, "one model") as one, on_redis(server, "another") as another:
            await one.admit(P1, *chain(3))
            await another.admit(P2, *chain(2))
            assert await one.holders(*chain(3)) == {"p-1": 3}
            assert await another.holders(*chain(3)) == {"p-2": 2}

    run(story())


def test_claims_outlive_the_index_process(server: LocalServer) -> None:
    async def story() -> None:
        async with on_redis(server, "lasting") as first:
            await first.admit(P1, *chain(3))
        async with on_redis(server, "lasting") as second:
            second.store.keep(KeepHolder(P1, 60))
            assert await second.holders(*chain(3)) == {"p-1": 3}
            assert second.failed.empty()

    run(story())


def test_voided_claims_are_cleared_and_their_slots_used_again(server: LocalServer) -> None:
    async def story() -> None:
        async with on_redis(server) as bench, raw(server) as client:
            await client.flushall()
            blocks = chain(1200)
            await bench.admit(P2, *blocks[:10])
            for life in range(20):
                await bench.admit(Peer("a", Role.PREFILL, "p-1", life), *blocks)
                bench.store.replace(ReplaceBlocks(Peer("a", Role.PREFILL, "p-1", life), blocks[: 600 + life]))
                assert (await bench.holders(*blocks))["p-1"] == 600 + life
                while len(await client.keys("*}:b:*")) > 619 or await client.keys("*:sweeping"):
                    await asyncio.sleep(0.01)
            (slots,) = await client.keys("*:slots")
            assert int(await client.get(slots)) <= 4
            assert await bench.holders(*blocks) == {"p-1": 619, "p-2": 10}
            bitmaps = [await client.get(key) for key in await client.keys("*}:b:*")]
            assert sum(byte.bit_count() for bitmap in bitmaps for byte in bitmap) == 619 + 10

    run(story())


def test_forgotten_scripts_are_taught_again(server: LocalServer) -> None:
    async def story() -> None:
        async with on_redis(server) as bench, raw(server) as client:
            await bench.admit(P1, *chain(3))
            await client.script_flush()
            bench.store.store(StoreBlocks(P1, chain(4)[3:], ()))
            assert await bench.holders(*chain(4)) == {"p-1": 4}
            assert bench.failed.empty()

    run(story())


def test_a_store_that_came_before_redis_works_once_it_is_there(tmp_path: Path) -> None:
    async def story() -> None:
        late = LocalServer(redis_server("late", free_port(), tmp_path), tmp_path / "late.log")
        async with on_redis(late) as bench:
            bench.store.find(FindPrefix(RequestId("q"), ROUTER, chain(1)))
            assert (await bench.failure()).query == "q"
            assert not bench.store.connected
            with late:
                await bench.admit(P1, *chain(3))
                assert await bench.holders(*chain(3)) == {"p-1": 3}
                assert bench.store.connected

    run(story())


def test_a_redis_that_stands_still_costs_one_time_out_and_answers_no_old_question_later(server: LocalServer) -> None:
    async def story() -> None:
        async with on_redis(server, timeout_s=0.3) as bench:
            await bench.admit(P1, *chain(3))
            assert await bench.holders(*chain(3)) == {"p-1": 3}
            with _stopped(server):
                for number in range(5):
                    bench.store.find(FindPrefix(RequestId(f"old {number}"), ROUTER, chain(3)))
                    await asyncio.sleep(0)
                async with asyncio.timeout(1):
                    assert [(await bench.failure()).query for _ in range(5)] == [f"old {number}" for number in range(5)]
            assert await bench.holders(*chain(2)) == {"p-1": 2}

    run(story())


def test_hashes_cut_short_by_a_peer_harm_nobody(server: LocalServer) -> None:
    async def story() -> None:
        async with on_redis(server) as bench:
            await bench.admit(P1, *chain(3))
            short = BlockHash(b"short")
            bench.store.store(StoreBlocks(P1, (short,), (short,)))
            assert await bench.holders(short) == {}
            assert (await bench.holders(*chain(3), short)).get("p-1", 3) == 3

    run(story())


@contextmanager
def _stopped(server: LocalServer) -> Iterator[None]:
    assert server.pid
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)
