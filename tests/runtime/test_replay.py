"""A history recorded by the live driver, on a real clock, replays to the same effects in a machine that never lived."""

import asyncio
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from pdd.adapters.bus_memory import MemoryHub
from pdd.adapters.engine_scripted import SMALL_SHAPE, Script, create_scripted, reference
from pdd.adapters.kv_memory import MemoryKvLink
from pdd.adapters.kv_memory_lines import MemoryLines
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.cost import EngineCost
from pdd.core.effects import Effect
from pdd.core.events import Event, RequestSubmitted
from pdd.core.ids import Peer, RequestId, Role
from pdd.core.messages import Beat, Message, WorkerCard
from pdd.core.roles.router import Router
from pdd.core.routing import RoutingSettings
from pdd.core.sampling import Sampling
from pdd.core.timeouts import TimeOuts
from pdd.plan.house import FINGERPRINT, WORKERS
from pdd.plan.house_parts import Client, Clients
from pdd.ports import Ports
from pdd.runtime.driver import LiveDriver, LoopClock
from tests.sim.scene import prompt

QUICK = TimeOuts(tick_s=0.02, beat_s=0.05, suspect_s=2.0, lease_s=4.0)
COST = EngineCost(step_s=0.001, prefill_tokens_per_s=50_000.0)
KEEP = 1 << 20
WAIT_S = 40.0


class Recorded:
    """A machine that notes what it asked for."""

    def __init__(self, machine: Any) -> None:
        self.machine, self.done = machine, list[list[Effect]]()

    @property
    def deadline(self) -> float | None:
        deadline: float | None = self.machine.deadline
        return deadline

    def start(self, now: float) -> list[Effect]:
        self.done.append(self.machine.start(now))
        return self.done[-1]

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.done.append(self.machine.handle(event, now))
        return self.done[-1]


class Live:
    """P, RLD, MD and a router on one loop."""

    def __init__(self) -> None:
        self.clock = LoopClock(asyncio.get_running_loop())
        self.hub = MemoryHub(self.clock, Random(0), lambda sender, receiver: 0.0005)
        self.lines = MemoryLines(self.clock)
        self.lines.shape("a", "a", 1e9, 0.0001)
        self.lines.shape("a", "b", 400_000.0, 0.005)
        self.clients = Clients(self.clock.now)
        self.drivers: dict[str, LiveDriver] = {}
        self.born: dict[str, Any] = {}
        for role, name, site in ((Role.PREFILL, "p1", "a"), (Role.RELAY, "r1", "a"), (Role.MAIN, "m1", "b")):
            self._worker(Peer(site, role, name, 1))
        routing = RoutingSettings(line_bytes_per_s=20_000.0)
        router = Peer("a", Role.ROUTER, "router", 1)
        driver = self._driver(router, Router(router, FINGERPRINT, QUICK, routing, policy="catch_up"), (Beat,))
        assert driver.ports
        driver.ports.text = self.clients

    def _driver(self, me: Peer, machine: Any, listen_to: tuple[type[Message], ...] = ()) -> LiveDriver:
        self.born[me.name] = deepcopy(machine)
        driver = self.drivers[me.name] = LiveDriver(Recorded(machine), self.clock, keep=KEEP)
        notes = MemoryNotes()
        driver.ports = Ports(self.hub.bus(me, driver.post, notes, listen_to=listen_to), notes)
        return driver

    def _worker(self, me: Peer) -> None:
        address = f"{me.name}:kv"
        card = WorkerCard(FINGERPRINT, 4096, 8, SMALL_SHAPE.bytes_per_token, address)
        driver = self._driver(me, WORKERS[me.role](me, card, QUICK, b"secrets"))
        shape: dict[str, Any] = {"pages": 256, "page_size": 16, "max_sequences": 8, "max_context": 4096}
        engine = create_scripted(
            **shape,
            chunk_tokens=64,
            cost=COST,
            fingerprint=FINGERPRINT,
            kv_shape=SMALL_SHAPE,
            script=Script(mean_outputs=0),
            sink=driver.post,
            clock=self.clock,
        )
        assert driver.ports
        link = MemoryKvLink(
            me,
            self.lines,
            address=address,
            fingerprint=FINGERPRINT,
            source=engine,
            sink=driver.post,
            notes=MemoryNotes(),
            staging_bytes=1 << 20,
            chunk_tokens_max=32,
        )
        driver.ports.engine, driver.ports.kv = engine, link

    def ask(self, tokens: int, outputs: int) -> Client:
        request = RequestId(f"q{len(self.clients.all)}")
        asked = RequestSubmitted(request, prompt(tokens), Sampling(outputs), route="P-RLD-MD")
        client = self.clients.all[request] = Client(asked)
        self.drivers["router"].post(asked)
        return client


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0)  # the others' turn


async def lived() -> tuple[Live, list[Client]]:
    """Four requests, served and given back."""
    live = Live()
    running = [asyncio.create_task(driver.run()) for driver in live.drivers.values()]
    router: Any = live.drivers["router"].machine
    await until(lambda: len(router.machine.fleet.workers) == 3)
    clients = [live.ask(150 + 40 * i, 120) for i in range(4)]
    await until(lambda: all(client.ended for client in clients))
    for task in running:
        task.cancel()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
    return live, clients


@pytest.mark.timeout(120)
def test_a_history_of_the_live_driver_replays_to_the_same_effects() -> None:
    live, clients = asyncio.run(lived())
    for client in clients:
        asked = client.asked
        assert client.ids == reference(asked.ids, asked.sampling, len(asked.ids), Script(mean_outputs=0))
    assert any(client.complete and client.complete.report.fence for client in clients), "one was handed over"
    for name, machine in live.born.items():
        driver: Any = live.drivers[name]
        (began, _), *rest = driver.history
        replayed = [machine.start(began), *(machine.handle(event, now) for now, event in rest)]
        assert repr(replayed) == repr(driver.machine.done), name
