"""What the Redis prefix store alone has: several models, lasting claims, sweeping, outages of every kind."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdd.adapters.local_servers import LocalServer, free_port, redis_server
from pdd.core.effects import FindPrefix, KeepHolder, ReplaceBlocks, StoreBlocks
from pdd.core.ids import BlockHash, Peer, RequestId, Role
from tests.contract.buses import stopped
from tests.contract.prefix_stores import (
    P1,
    P2,
    ROUTER,
    chain,
    on_redis,
    raw,
    run,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    data = tmp_path_factory.mktemp("redis")
    with LocalServer(redis_server("redis", free_port(), data), data / "redis.log") as running:
        yield running


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
                while len(await client.keys("*}:b:*")) > 619 or await client.keys("*ing"):  # waiting, sweeping
                    await asyncio.sleep(0.01)
            (slots,) = await client.keys("*:slots")
            assert int(await client.get(slots)) <= 8  # 61 were given out
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
            with stopped(server):
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
