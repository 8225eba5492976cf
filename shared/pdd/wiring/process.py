"""What every service has before its role: a name, a clock, notes, credentials; and the driver and bus that its machine gets."""

import asyncio
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ..adapters.bus_nats import NatsBus
from ..adapters.credentials import Credentials
from ..adapters.notes_otel import OtelNotes
from ..core.events import Event
from ..core.ids import Peer, Role
from ..core.messages import Message
from ..core.roles.prefix_index import PrefixIndex
from ..core.roles.router import Router
from ..core.roles.worker import Worker
from ..runtime.driver import LiveDriver, LoopClock
from ..runtime.settings import RouterSettings, ServiceSettings, WorkerSettings

M = TypeVar("M", Worker[Any], Router, PrefixIndex)


class Process:
    """What a service has before its machine: a name, a clock, notes. Inside the loop that will drive it."""

    def __init__(self, role: Role, settings: ServiceSettings, http: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock(self.loop)
        self.settings = settings
        name = settings.name or _default_name(role, http.getsockname()[1])
        self.me = Peer(settings.site, role, name, incarnation=time.time_ns() // 1_000_000)
        self.credentials = Credentials(settings.credentials_dir)
        otlp = settings.otlp_endpoint or None
        self.notes = OtelNotes(
            f"pdd-{role}", str(self.me), otlp, self.clock, credentials=self.credentials, model=_model_of(settings)
        )
        self._driver: LiveDriver | None = None

    def post(self, event: Event) -> None:
        """The sink of this process's adapters, from any thread."""
        assert self._driver is not None, "an adapter spoke before there was a machine"
        self._driver.post(event)

    def on_loop(self, action: Callable[[], None]) -> None:
        """From any thread. What the action raises ends the process."""
        self.loop.call_soon_threadsafe(action)

    def drive(self, machine: M, *listen_to: type[Message]) -> "Running[M]":
        """With a bus that hears what is sent to us, and broadcasts of these kinds."""
        self._driver = LiveDriver(machine, self.clock)
        servers = [self.settings.nats_url]
        bus = NatsBus(self.me, servers, self.post, self.notes, listen_to=listen_to, credentials=self.credentials)
        return Running(machine, self._driver, bus)


@dataclass(frozen=True)
class Running(Generic[M]):
    """One role with its driver. Satisfies runtime.lifecycle.Running."""

    machine: M
    driver: LiveDriver
    bus: NatsBus

    def drained(self) -> bool:
        return self.machine.idle

    def connected(self) -> bool:
        return self.bus.connected


def _model_of(settings: ServiceSettings) -> str:
    """As its metrics name it."""
    match settings:
        case RouterSettings(model_name=name) if name:
            return name
        case RouterSettings() | WorkerSettings():
            return settings.model_dir.resolve().name
        case _:
            return ""


def _default_name(role: Role, port: int) -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())
    return f"{role}-{host}-{port}"[:64]
