"""What every bus promises, over NATS with real brokers and in memory; then what only one of them has."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import nats
import pytest

from pdd.adapters.bus_memory import MemoryBus, MemoryHub
from pdd.adapters.bus_nats import OUTBOX_BYTES, NatsBus
from pdd.adapters.local_servers import LocalServer, Login, free_port, nats_hub, nats_leaf
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core import codec, subjects
from pdd.core.events import Heard
from pdd.core.ids import Peer, Role
from pdd.core.messages import Ask, Beat, BlocksChanged, EngineLoad, Lookup, Message, Release, WorkerCard
from pdd.runtime.driver import LoopClock

WAIT_S = 5.0
ROUTER = Peer("a", Role.ROUTER, "r-1", 7)
INDEX = Peer("a", Role.INDEX, "i-1", 3)
MAIN = Peer("b", Role.MAIN, "m-1", 2**60)
OTHER_MAIN = Peer("b", Role.MAIN, "m-10", 1)
BEAT = Beat(1, WorkerCard("f", 4096, 8, 256), (), EngineLoad())
BLOCKS = BlocksChanged(1, b"0123456789abcdef", b"")
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Party:
    """One peer on the bus, and what it hears."""

    bus: Any
    notes: MemoryNotes
    inbox: asyncio.Queue[Heard] = field(default_factory=asyncio.Queue)

    async def hears(self) -> Heard:
        return await asyncio.wait_for(self.inbox.get(), WAIT_S)

    def dropped(self, reason: str) -> float:
        return self.notes.total("pdd_bus_dropped_total", reason=reason)


Join = Callable[..., Coroutine[Any, Any, Party]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(_hub(), tmp_path_factory.mktemp("nats") / "hub.log") as server:
        yield server


@asynccontextmanager
async def on_nats(*urls: str, patience_s: float = 2.0) -> AsyncIterator[Join]:
    async with AsyncExitStack() as stack:

        async def join(me: Peer, listen_to: tuple[type[Message], ...] = (), url: str = urls[0]) -> Party:
            party = Party(None, MemoryNotes())
            party.bus = NatsBus(me, [url], party.inbox.put_nowait, party.notes, listen_to=listen_to)
            await party.bus.connect(patience_s)
            stack.push_async_callback(party.bus.close)
            return party

        yield join


@asynccontextmanager
async def in_memory() -> AsyncIterator[Join]:
    hub = MemoryHub(LoopClock(asyncio.get_running_loop()))

    async def join(me: Peer, listen_to: tuple[type[Message], ...] = ()) -> Party:
        party = Party(None, MemoryNotes())
        party.bus = hub.bus(me, party.inbox.put_nowait, party.notes, listen_to=listen_to)
        return party

    yield join


@pytest.fixture(params=["memory", "nats"])
def a_bus(request: pytest.FixtureRequest) -> Callable[[], Any]:
    if request.param == "memory":
        return in_memory
    url = request.getfixturevalue("broker").url
    return lambda: on_nats(url)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))


# -- every bus --------------------------------------------------------------------------------------------------------


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


# -- NATS alone -------------------------------------------------------------------------------------------------------


def test_garbage_from_the_broker_is_counted_and_the_rest_is_heard(broker: LocalServer) -> None:
    async def story() -> None:
        async with on_nats(broker.url) as join, _raw(broker) as raw:
            main = await join(MAIN)
            for frame in (b"", b"\xc1", codec.encode_message(ROUTER, MAIN, Release("x", 1))[:-1]):
                await raw.publish(subjects.to_peer(MAIN, Release("x", 1)), frame)
            await raw.publish(subjects.to_peer(MAIN, BEAT), codec.encode_message(ROUTER, MAIN, Release("y", 1)))
            assert (await main.hears()).message == Release("y", 1)
            assert main.dropped("garbage") == 3

    run(story())


def test_the_trace_context_travels_in_a_header(broker: LocalServer) -> None:
    async def story() -> None:
        async with on_nats(broker.url) as join, _raw(broker) as raw:
            heard = await raw.subscribe(subjects.inbox(MAIN))
            await raw.flush()
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
        server = LocalServer(_hub(), tmp_path / "hub.log")
        async with on_nats(server.url, patience_s=0.05) as join:
            router, main = await join(ROUTER, (Beat,)), await join(MAIN)
            assert not router.bus.connected
            router.bus.send(MAIN, Release("x", 1), "")
            with server:
                while not (router.bus.connected and main.bus.connected):  # bounded by run()
                    await asyncio.sleep(0.01)
                main.bus.broadcast(BEAT)
                assert (await router.hears()).message == BEAT
                await _repeat_until_heard(router, main)

    run(story())


def test_a_killed_broker_is_missed_and_found_again_and_the_outbox_stays_bounded_meanwhile(tmp_path: Path) -> None:
    async def story() -> None:
        with LocalServer(_hub(), tmp_path / "hub.log") as server:
            async with on_nats(server.url) as join:
                router, main = await join(ROUTER), await join(MAIN)
                await _repeat_until_heard(router, main)
                server.kill()
                while router.bus.connected or main.bus.connected:
                    await asyncio.sleep(0.01)
                large = bytes(500_000)
                for number in range(40):
                    router.bus.send(MAIN, Lookup(str(number), large), "")
                kept = OUTBOX_BYTES // 500_000
                assert router.dropped("outbox_full") == 40 - kept
                server.start()
                await _repeat_until_heard(router, main)

    run(story())


def test_a_broker_that_stands_still_is_given_up_and_found_again(tmp_path: Path) -> None:
    async def story() -> None:
        with LocalServer(_hub(), tmp_path / "hub.log") as server:
            async with on_nats(server.url) as join:
                router, main = await join(ROUTER), await join(MAIN)
                await _repeat_until_heard(router, main)
                with _stopped(server):
                    while router.bus.connected or main.bus.connected:
                        router.bus.send(MAIN, Release("x", 1), "")
                        await asyncio.sleep(0.01)
                await _repeat_until_heard(router, main)

    run(story())


def test_closing_is_bounded_though_the_broker_stands_still(tmp_path: Path) -> None:
    async def story() -> None:
        with LocalServer(_hub(), tmp_path / "hub.log") as server:
            async with on_nats(server.url) as join:
                router = await join(ROUTER)
                with _stopped(server):
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
                await _repeat_until_heard(router, main)
                main.bus.broadcast(BEAT)
                assert (await router.hears()).message == BEAT
                main.bus.send(ROUTER, Release("z", 3), TRACE)
                assert (await router.hears()).message == Release("z", 3)

    run(story())


async def _repeat_until_heard(sender: Party, receiver: Party) -> None:
    """As the protocol does. What else was on its way is passed over."""
    for number in range(500):
        sender.bus.send(MAIN, Ask("again", 1, number), "")
        try:
            while (await asyncio.wait_for(receiver.inbox.get(), 0.02)).message != Ask("again", 1, number):
                pass
            return
        except TimeoutError:
            continue
    raise AssertionError("never heard")


@asynccontextmanager
async def _raw(broker: LocalServer) -> AsyncIterator[Any]:
    client = await nats.connect(broker.url)
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def _stopped(server: LocalServer) -> Iterator[None]:
    assert server.pid
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def _hub() -> Any:
    return nats_hub("hub", free_port(), free_port(), Login(), Login("leaf", "secret"))


# -- memory alone -----------------------------------------------------------------------------------------------------


class VirtualClock:
    """Time passes when `run` says so."""

    def __init__(self) -> None:
        self.time = 0.0
        self.due: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        return self.time

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.due.append((self.time + delay_s, len(self.due), action))

    def run(self) -> None:
        for at, _, action in sorted(self.due):
            self.time = at
            action()
        self.due.clear()


def _two(hub: MemoryHub) -> tuple[MemoryBus, list[int]]:
    heard: list[int] = []

    def sink(event: Any) -> None:
        heard.append(event.message.start)

    hub.bus(MAIN, sink, MemoryNotes())
    return hub.bus(ROUTER, lambda event: None, MemoryNotes()), heard


def _send(bus: MemoryBus, *numbers: int) -> None:
    for number in numbers:
        bus.send(MAIN, Ask("x", 1, number), "")


def test_a_delay_shortened_on_the_way_does_not_reorder() -> None:
    clock, delay = VirtualClock(), [1.0]
    bus, heard = _two(MemoryHub(clock, delay_s=lambda sender, receiver: delay[0]))
    _send(bus, 1, 2)
    delay[0] = 0.1
    _send(bus, 3)
    clock.run()
    assert (heard, clock.time) == ([1, 2, 3], 1.0)


def test_loss_duplication_and_reordering_come_from_the_seed_alone() -> None:
    def history(seed: int) -> list[int]:
        clock = VirtualClock()
        hub = MemoryHub(clock, Random(seed))
        hub.weather.loss, hub.weather.duplicate, hub.weather.reorder = 0.2, 0.2, 0.2
        bus, heard = _two(hub)
        _send(bus, *range(200))
        clock.run()
        return heard

    assert history(1) == history(1) != history(2)
    heard = history(1)
    assert len(set(heard)) < 200 and len(heard) > len(set(heard)) and heard != sorted(heard)


def test_a_partition_lets_nothing_through_until_it_is_healed() -> None:
    clock = VirtualClock()
    hub = MemoryHub(clock)
    bus, heard = _two(hub)
    heal_sites, heal_all = hub.cut_sites("b", "a"), hub.partition(lambda sender, receiver: True)
    _send(bus, 1)
    heal_all()
    _send(bus, 2)
    heal_sites()
    _send(bus, 3)
    clock.run()
    assert heard == [3]


def test_a_closed_end_hears_nothing_even_of_what_was_on_its_way() -> None:
    clock = VirtualClock()
    hub = MemoryHub(clock, delay_s=lambda sender, receiver: 1.0)
    heard: list[Any] = []
    main = hub.bus(MAIN, heard.append, MemoryNotes())
    router = hub.bus(ROUTER, heard.append, MemoryNotes())
    _send(router, 1)
    main.close()
    _send(router, 2)
    clock.run()
    assert heard == []
