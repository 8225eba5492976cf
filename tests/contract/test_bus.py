"""What every bus promises, over NATS with a real broker and in memory."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pdd.adapters.local_servers import LocalServer
from pdd.core.events import Heard
from pdd.core.ids import Peer, Role
from pdd.core.messages import Ask, Beat, BlocksChanged, Lookup, Release
from tests.contract.buses import (
    BEAT,
    BLOCKS,
    INDEX,
    MAIN,
    OTHER_MAIN,
    ROUTER,
    TRACE,
    hub_command,
    in_memory,
    on_nats,
    run,
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(hub_command(), tmp_path_factory.mktemp("nats") / "hub.log") as server:
        yield server


@pytest.fixture(params=["memory", "nats"])
def a_bus(request: pytest.FixtureRequest) -> Callable[[], Any]:
    if request.param == "memory":
        return in_memory
    url = request.getfixturevalue("broker").url
    return lambda: on_nats(url)


def test_a_message_comes_with_both_ends_and_to_the_receiver_alone(a_bus: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_bus() as join:
            router, main, other = await join(ROUTER), await join(MAIN), await join(OTHER_MAIN)
            router.bus.send(MAIN, Release("x", 1), TRACE)
            router.bus.send(OTHER_MAIN, Release("y", 2), "")
            assert await main.hears() == Heard(ROUTER, MAIN, Release("x", 1))
            assert await other.hears() == Heard(ROUTER, OTHER_MAIN, Release("y", 2))
            main.bus.send(ROUTER, Release("z", 3), "")
            assert await router.hears() == Heard(MAIN, ROUTER, Release("z", 3))

    run(story())


def test_order_between_two_peers_is_kept(a_bus: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_bus() as join:
            router, main = await join(ROUTER), await join(MAIN)
            for number in range(1000):
                router.bus.send(MAIN, Ask("x", 1, number), TRACE if number % 3 else "")
            assert [(await main.hears()).message.start for _ in range(1000)] == list(range(1000))

    run(story())


def test_a_broadcast_reaches_who_listens_to_its_kind_and_never_its_sender(a_bus: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_bus() as join:
            router, index = await join(ROUTER, (Beat,)), await join(INDEX, (Beat, BlocksChanged))
            main, other = await join(MAIN, (Beat,)), await join(OTHER_MAIN)
            main.bus.broadcast(BLOCKS)
            main.bus.broadcast(BEAT)
            assert await router.hears() == Heard(MAIN, None, BEAT)
            assert [(await index.hears()).message for _ in range(2)] == [BLOCKS, BEAT]
            for party, peer in ((main, MAIN), (other, OTHER_MAIN)):
                router.bus.send(peer, Release("x", 1), "")
                assert (await party.hears()).message == Release("x", 1)

    run(story())


def test_a_message_for_a_former_life_reaches_the_next_one_which_can_tell(a_bus: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_bus() as join:
            later = Peer(MAIN.site, MAIN.role, MAIN.name, MAIN.incarnation + 1)
            router, main = await join(ROUTER), await join(later)
            router.bus.send(MAIN, Release("x", 1), "")
            assert (await main.hears()).to == MAIN

    run(story())


def test_what_is_too_large_is_dropped_and_counted_and_the_rest_goes_on(a_bus: Callable[[], Any]) -> None:
    async def story() -> None:
        async with a_bus() as join:
            router, main = await join(ROUTER), await join(MAIN)
            router.bus.send(MAIN, Lookup("large", bytes(1 << 20)), TRACE)
            router.bus.send(MAIN, Lookup("just fits", bytes((1 << 20) - 300)), TRACE)
            assert (await main.hears()).message.query == "just fits"
            assert router.dropped("too_large") == 1

    run(story())


@pytest.mark.parametrize("name", ["m.1", "*", ">", "m 1", ""])
def test_a_peers_wrong_name_costs_its_message_and_no_more(a_bus: Callable[[], Any], name: str) -> None:
    async def story() -> None:
        async with a_bus() as join:
            router, main = await join(ROUTER), await join(MAIN)
            router.bus.send(Peer("b", Role.MAIN, name, 1), Release("x", 1), "")
            router.bus.send(MAIN, Release("y", 1), "")
            assert (await main.hears()).message.request == "y"
            assert router.dropped("bad_name") == 1

    run(story())
