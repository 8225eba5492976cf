"""What the NATS bus alone has: brokers that come late, die, stand still, or sit at two sites."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdd.adapters.bus_nats import OUTBOX_BYTES
from pdd.adapters.local_servers import LocalServer, Login, free_port, nats_hub, nats_leaf
from pdd.core import codec, subjects
from pdd.core.messages import Ask, Beat, Lookup, Release
from tests.contract.buses import (
    BEAT,
    MAIN,
    ROUTER,
    TRACE,
    WAIT_S,
    hub_command,
    on_nats,
    raw,
    repeat_until_heard,
    run,
    stopped,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(hub_command(), tmp_path_factory.mktemp("nats") / "hub.log") as server:
        yield server


def test_garbage_from_the_broker_is_counted_and_the_rest_is_heard(broker: LocalServer) -> None:
    async def story() -> None:
        async with on_nats(broker.url) as join, raw(broker) as client:
            main = await join(MAIN)
            for frame in (b"", b"\xc1", codec.encode_message(ROUTER, MAIN, Release("x", 1))[:-1]):
                await client.publish(subjects.to_peer(MAIN, Release("x", 1)), frame)
            await client.publish(subjects.to_peer(MAIN, BEAT), codec.encode_message(ROUTER, MAIN, Release("y", 1)))
            assert (await main.hears()).message == Release("y", 1)
            assert main.dropped("garbage") == 3

    run(story())


def test_the_trace_context_travels_in_a_header(broker: LocalServer) -> None:
    async def story() -> None:
        async with on_nats(broker.url) as join, raw(broker) as client:
            heard = await client.subscribe(subjects.inbox(MAIN))
            await client.flush()
            router = await join(ROUTER)
            router.bus.send(MAIN, Release("x", 1), TRACE)
            router.bus.send(MAIN, Release("y", 1), "")
            assert (await heard.next_msg(WAIT_S)).headers == {"traceparent": TRACE}
            assert (await heard.next_msg(WAIT_S)).headers is None

    run(story())


def test_what_was_sent_before_close_arrives(broker: LocalServer) -> None:
    async def story() -> None:
        async with on_nats(broker.url) as join:
            router, main = await join(ROUTER), await join(MAIN)
            for number in range(100):
                router.bus.send(MAIN, Ask("x", 1, number), "")
            await router.bus.close()
            assert [(await main.hears()).message.start for _ in range(100)] == list(range(100))

    run(story())


def test_peers_that_came_before_the_broker_speak_once_it_is_there(tmp_path: Path) -> None:
    async def story() -> None:
        server = LocalServer(hub_command(), tmp_path / "hub.log")
        async with on_nats(server.url, patience_s=0.05) as join:
            router, main = await join(ROUTER, (Beat,)), await join(MAIN)
            assert not router.bus.connected
            router.bus.send(MAIN, Release("x", 1), "")
            with server:
                while not (router.bus.connected and main.bus.connected):  # bounded by run()
                    await asyncio.sleep(0.01)
                main.bus.broadcast(BEAT)
                assert (await router.hears()).message == BEAT
                await repeat_until_heard(router, main)

    run(story())


def test_a_killed_broker_is_missed_and_found_again_and_the_outbox_stays_bounded_meanwhile(tmp_path: Path) -> None:
    async def story() -> None:
        with LocalServer(hub_command(), tmp_path / "hub.log") as server:
            async with on_nats(server.url) as join:
                router, main = await join(ROUTER), await join(MAIN)
                await repeat_until_heard(router, main)
                server.kill()
                while router.bus.connected or main.bus.connected:
                    await asyncio.sleep(0.01)
                large = bytes(500_000)
                for number in range(40):
                    router.bus.send(MAIN, Lookup(str(number), large), "")
                kept = OUTBOX_BYTES // 500_000
                assert router.dropped("outbox_full") == 40 - kept
                server.start()
                await repeat_until_heard(router, main)

    run(story())


def test_a_broker_that_stands_still_is_given_up_and_found_again(tmp_path: Path) -> None:
    async def story() -> None:
        with LocalServer(hub_command(), tmp_path / "hub.log") as server:
            async with on_nats(server.url) as join:
                router, main = await join(ROUTER), await join(MAIN)
                await repeat_until_heard(router, main)
                with stopped(server):
                    while router.bus.connected or main.bus.connected:
                        router.bus.send(MAIN, Release("x", 1), "")
                        await asyncio.sleep(0.01)
                await repeat_until_heard(router, main)

    run(story())


def test_closing_is_bounded_though_the_broker_stands_still(tmp_path: Path) -> None:
    async def story() -> None:
        with LocalServer(hub_command(), tmp_path / "hub.log") as server:
            async with on_nats(server.url) as join:
                router = await join(ROUTER)
                with stopped(server):
                    router.bus.send(MAIN, Lookup("x", bytes(1_000_000)), "")
                    await asyncio.wait_for(router.bus.close(0.2), 3)

    run(story())


def test_a_wrong_password_is_no_exception_and_no_connection(broker: LocalServer) -> None:
    async def story() -> None:
        url = Login("pdd", "wrong").at("nats", broker.command.port)
        async with on_nats(url, patience_s=0.2) as join:
            router = await join(ROUTER)
            router.bus.send(MAIN, Release("x", 1), "")
            assert not router.bus.connected

    run(story())


def test_two_sites_brokers_joined_by_a_leafnode_carry_commands_and_broadcasts_both_ways(tmp_path: Path) -> None:
    async def story() -> None:
        leaf_port, leaf_login = free_port(), Login("leaf", "secret")
        hub = LocalServer(nats_hub("a", free_port(), leaf_port, Login(), leaf_login), tmp_path / "a.log")
        leaf = LocalServer(nats_leaf("b", free_port(), leaf_port, Login(), leaf_login), tmp_path / "b.log")
        with hub, leaf:
            async with on_nats(hub.url) as join:
                router, main = await join(ROUTER, (Beat,)), await join(MAIN, url=leaf.url)
                await repeat_until_heard(router, main)
                main.bus.broadcast(BEAT)
                assert (await router.hears()).message == BEAT
                main.bus.send(ROUTER, Release("z", 3), TRACE)
                assert (await router.hears()).message == Release("z", 3)

    run(story())
