"""What every prefix store promises, over a real Redis-compatible server and in memory."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pdd.adapters.local_servers import LocalServer, free_port, redis_server
from pdd.core.effects import FindPrefix, KeepHolder, ReplaceBlocks, StoreBlocks
from pdd.core.events import PrefixFound, StoreFailed
from pdd.core.ids import RequestId
from tests.contract.prefix_stores import (
    P1,
    P1_LATER,
    P2,
    ROUTER,
    WAIT_S,
    Bench,
    chain,
    in_memory,
    on_redis,
    run,
)


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
            for call in ("store", "replace", "find", "keep"):
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
