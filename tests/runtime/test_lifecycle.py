"""A process's life: live at once, ready when wired, drained when asked, gone when its machine or a callback breaks."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from pdd.adapters.bus_memory import MemoryHub
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.effects import Effect
from pdd.core.errors import IllegalEvent, PddError
from pdd.core.events import DrainWanted, Event
from pdd.core.ids import Peer, Role
from pdd.ports import Ports
from pdd.runtime.driver import LiveDriver, LoopClock
from pdd.runtime.health import Health, Stage, worker_app
from pdd.runtime.lifecycle import listen, run_service

WAIT_S = 10.0
ME = Peer("a", Role.INDEX, "index-1", 1)


class Busy:
    """A machine that has work for as long as it is told; and raises where it is told."""

    def __init__(self, *, breaks_on: type[Event] | None = None) -> None:
        self.busy = True
        self.breaks_on = breaks_on
        self.heard: list[Event] = []

    @property
    def deadline(self) -> float | None:
        return None

    def start(self, now: float) -> list[Effect]:
        return []

    def handle(self, event: Event, now: float) -> list[Effect]:
        if self.breaks_on and isinstance(event, self.breaks_on):
            raise IllegalEvent(f"{type(event).__name__}")
        self.heard.append(event)
        return []


class Service:
    """Satisfies runtime.lifecycle.Running, once opened."""

    def __init__(self, machine: Busy) -> None:
        self.machine = machine
        self.there = True
        self.closed = False
        self.may_open = asyncio.Event()
        clock = LoopClock(asyncio.get_running_loop())
        self.driver = LiveDriver(machine, clock)
        notes = MemoryNotes()
        self.driver.ports = Ports(MemoryHub(clock).bus(ME, self.driver.post, notes), notes)

    def drained(self) -> bool:
        return not self.machine.busy

    def connected(self) -> bool:
        return self.there

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Service"]:
        await self.may_open.wait()
        try:
            yield self
        finally:
            self.closed = True


class Life:
    """One run of `run_service` in this loop, and what it says over HTTP."""

    def __init__(self, machine: Busy, drain_s: float = WAIT_S) -> None:
        self.service, self.health = Service(machine), Health("test")
        sock = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        app = worker_app(self.health, lambda: b"metrics")
        self.ended = asyncio.create_task(run_service(app, self.health, sock, self.service.open(), drain_s))

    async def get(self, path: str) -> tuple[int, str]:
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(self.url + path)
        return answer.status_code, answer.json()["status"]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                await asyncio.sleep(0)

    async def be_ready(self) -> None:
        self.service.may_open.set()
        await self.until(lambda: self.health.stage is Stage.READY)


def ask_to_end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_it_is_live_at_once_ready_when_wired_and_not_ready_without_its_broker() -> None:
    async def story() -> None:
        life = Life(Busy())
        assert await life.get("/live") == (200, "starting")
        assert await life.get("/ready") == (503, "starting")
        await life.be_ready()
        assert await life.get("/ready") == (200, "ready")
        life.service.there = False
        assert await life.get("/ready") == (503, "disconnected")
        assert await life.get("/live") == (200, "disconnected")
        life.service.machine.busy = False
        ask_to_end()
        assert await life.ended == 0

    asyncio.run(story())


def test_asked_to_end_it_lets_what_runs_finish() -> None:
    async def story() -> None:
        life = Life(Busy())
        await life.be_ready()
        ask_to_end()
        await life.until(lambda: life.service.machine.heard == [DrainWanted()])
        assert await life.get("/ready") == (503, "draining")
        assert not life.service.closed
        life.service.machine.busy = False
        assert await life.ended == 0
        assert life.service.closed

    asyncio.run(story())


def test_a_drain_over_http_ends_nothing_and_says_when_it_is_done() -> None:
    async def story() -> None:
        life = Life(Busy())
        await life.be_ready()
        async with httpx.AsyncClient(trust_env=False) as client:
            asked = await client.post(f"{life.url}/drain")
        assert (asked.status_code, asked.json()["status"]) == (202, "draining")
        await life.until(lambda: life.service.machine.heard == [DrainWanted()])
        assert await life.get("/ready") == (503, "draining")
        life.service.machine.busy = False
        assert await life.get("/ready") == (503, "drained")
        assert not life.ended.done()
        ask_to_end()
        assert await life.ended == 0

    asyncio.run(story())


@pytest.mark.parametrize("twice", [False, True], ids=["the drain's bound", "a second signal"])
def test_what_does_not_finish_is_left_after(twice: bool) -> None:
    async def story() -> None:
        life = Life(Busy(), drain_s=WAIT_S if twice else 0.1)
        await life.be_ready()
        ask_to_end()
        await life.until(lambda: life.service.machine.heard)
        if twice:
            ask_to_end()
        async with asyncio.timeout(WAIT_S / 2):
            assert await life.ended == 0
        assert life.service.closed

    asyncio.run(story())


def test_asked_to_end_before_it_is_wired_it_ends() -> None:
    async def story() -> None:
        life = Life(Busy())
        await life.get("/live")
        ask_to_end()
        async with asyncio.timeout(WAIT_S):
            assert await life.ended == 0

    asyncio.run(story())


def test_a_machine_that_raises_ends_the_process_with_its_story() -> None:
    async def story() -> None:
        life = Life(Busy(breaks_on=DrainWanted))
        await life.be_ready()
        life.service.driver.post(DrainWanted())
        with pytest.raises(IllegalEvent, match="DrainWanted"):
            await asyncio.wait_for(life.ended, WAIT_S)
        assert life.service.closed

    asyncio.run(story())


def test_a_callback_that_raises_ends_the_process_too() -> None:
    def breaks() -> None:
        raise RuntimeError("the step could not be computed")

    async def story() -> None:
        life = Life(Busy())
        await life.be_ready()
        asyncio.get_running_loop().call_soon_threadsafe(breaks)
        with pytest.raises(RuntimeError, match="could not be computed"):
            await asyncio.wait_for(life.ended, WAIT_S)
        assert life.service.closed

    asyncio.run(story())


def test_a_taken_port_is_named_with_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PddError, match=rf"127\.0\.0\.1:{port}.*PDD_HTTP_PORT"):
            listen("127.0.0.1", port)
