"""Parties on a bus, over NATS and in memory, for the contract tests."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import nats

from pdd.adapters.bus_memory import MemoryHub
from pdd.adapters.bus_nats import NatsBus
from pdd.adapters.local_servers import LocalServer, Login, ServerCommand, free_port, nats_hub
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.events import Heard
from pdd.core.ids import Peer, Role
from pdd.core.messages import Ask, Beat, BlocksChanged, EngineLoad, Message, WorkerCard
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


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(story, 20))


async def repeat_until_heard(sender: Party, receiver: Party) -> None:
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
async def raw(broker: LocalServer) -> AsyncIterator[Any]:
    client = await nats.connect(broker.url)
    try:
        yield client
    finally:
        await client.close()


@contextmanager
def stopped(server: LocalServer) -> Iterator[None]:
    assert server.pid
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def hub_command() -> ServerCommand:
    return nats_hub("hub", free_port(), free_port(), Login(), Login("leaf", "secret"))
