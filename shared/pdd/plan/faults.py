"""What can go wrong in a house, as actions to be called at their time. All of it can be undone, and `calm` undoes all."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..adapters.kv_memory_lines import Fault, no_fault
from ..core.events import KvImportFailed
from ..core.ids import Key, Peer, RequestId, Role
from ..core.messages import Beat, Message
from ..ports import Bus, Clock, Engine, KvChunk, Sink
from .house import House

Lost = Callable[[Peer | None, Message], bool]


class LossyBus:
    """A bus that loses what `lost(receiver, message)` says; a broadcast has no receiver. For faults that know what they hit."""

    def __init__(self, bus: Bus, lost: Lost) -> None:
        self._bus, self._lost = bus, lost

    def send(self, to: Peer, message: Message, traceparent: str) -> None:
        if not self._lost(to, message):
            self._bus.send(to, message, traceparent)

    def broadcast(self, message: Message) -> None:
        if not self._lost(None, message):
            self._bus.broadcast(message)


class LateBus:
    """A bus on which everything leaves so much later, in order, until a time has come."""

    def __init__(self, bus: Bus, clock: Clock, delay_s: float, until: float) -> None:
        self._bus, self._clock, self._delay_s, self._until = bus, clock, delay_s, until

    def send(self, to: Peer, message: Message, traceparent: str) -> None:
        self._later(partial(self._bus.send, to, message, traceparent))

    def broadcast(self, message: Message) -> None:
        self._later(partial(self._bus.broadcast, message))

    def _later(self, leave: Callable[[], None]) -> None:
        now = self._clock.now()
        leaves_at = min(now + self._delay_s, max(now, self._until + self._delay_s))
        self._clock.call_later(leaves_at - now, leave)


class SpoiltImports:
    """An engine that takes no KV while `spoilt` says so, as where the device has no memory for it; all else as ever."""

    def __init__(self, engine: Engine, sink: Sink, spoilt: Callable[[], bool]) -> None:
        self._engine, self._sink, self._spoilt = engine, sink, spoilt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def import_kv(self, key: Key, chunks: list[KvChunk], done: Callable[[], None]) -> None:
        if not self._spoilt():
            return self._engine.import_kv(key, chunks, done)
        done()
        self._sink(KvImportFailed(key, "spoilt"))


def lose(house: House, name: str, lost: Lost) -> None:
    """From now on this life of `name` cannot send what `lost` says."""
    ports = house.processes[name].node.ports
    assert ports is not None
    ports.bus = LossyBus(ports.bus, lost)


class Faults:
    """No fault lasts beyond `ends_at`."""

    def __init__(self, house: House, ends_at: float) -> None:
        self.house, self.ends_at = house, ends_at
        self.router_died = False
        self._ends: list[Callable[[], None]] = []

    # -- processes ----------------------------------------------------------------------------------------------------

    def crash(self, name: str) -> None:
        self.house.kill(name)

    def restart(self, name: str) -> None:
        process = self.house.processes[name]
        if not process.node.alive:
            self.house.boot(process.me.role, name)

    def pause(self, name: str, seconds: float) -> None:
        """It hears and does nothing meanwhile, and everything after."""
        self.house.processes[name].node.paused_until = self._end_of(seconds)

    def crash_router(self) -> None:
        """Its clients' connections end with it; a new one serves new requests."""
        self.router_died = True
        self.house.kill("router")
        for client in self.house.clients.all.values():
            client.gone = client.gone or not client.ended
        self.house.boot(Role.ROUTER, "router")

    def leave(self, request: RequestId) -> None:
        client = self.house.clients.all.get(request)
        if client and not client.ended:
            self.house.leave(client)

    # -- the bus ------------------------------------------------------------------------------------------------------

    def weather(self, **chances: float) -> None:
        for name, chance in chances.items():
            setattr(self.house.hub.weather, name, chance)

    def partition(self, one: str, other: str, seconds: float) -> None:
        """No message between two sites."""
        self._until(seconds, self.house.hub.cut_sites(one, other))

    def one_way(self, one: str, other: str, seconds: float) -> None:
        """No message from one site to another."""
        blocked = self.house.hub.partition(lambda sender, to: (sender.site, to.site) == (one, other))
        self._until(seconds, blocked)

    def mute(self, name: str, seconds: float) -> None:
        """Nothing that it sends arrives; it hears."""
        self._until(seconds, self.house.hub.partition(lambda sender, to: sender.name == name))

    def deafen(self, name: str, seconds: float) -> None:
        """It hears nothing; what it sends arrives."""
        self._until(seconds, self.house.hub.partition(lambda sender, to: to.name == name))

    def lose_beats(self, name: str, seconds: float) -> None:
        """Only its beats are lost: its work arrives."""
        world, until = self.house.world, self._end_of(seconds)
        lose(self.house, name, lambda to, message: isinstance(message, Beat) and world.now() < until)

    def delay_router(self, delay_s: float, seconds: float) -> None:
        """What it says comes late: its commands, its cuts, its renewals."""
        ports, world = self.house.processes["router"].node.ports, self.house.world
        assert ports is not None
        ports.bus = LateBus(ports.bus, world, delay_s, self._end_of(seconds))

    # -- engines ------------------------------------------------------------------------------------------------------

    def spoil_imports(self, name: str, seconds: float) -> None:
        process, world, until = self.house.processes[name], self.house.world, self._end_of(seconds)
        ports = process.node.ports
        assert ports is not None and ports.engine is not None
        engine: Any = SpoiltImports(ports.engine, process.node.post, lambda: world.now() < until)
        ports.engine = engine

    # -- the lines ----------------------------------------------------------------------------------------------------

    def cut_line(self, one: str, other: str, seconds: float) -> None:
        self.house.lines.cut(one, other)
        self._until(seconds, partial(self.house.lines.restore, one, other))

    def stall_line(self, one: str, other: str, seconds: float) -> None:
        self.house.lines.stall(one, other)
        self._until(seconds, partial(self.house.lines.restore, one, other))

    def damage_lines(self, fault: Fault) -> None:
        self.house.lines.fault = fault

    # -- the end ------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Whatever lasts, ends; whoever is down, comes back."""
        self.weather(loss=0.0, duplicate=0.0, reorder=0.0)
        self.house.lines.fault = no_fault
        for end in list(self._ends):
            end()
        for name in list(self.house.processes):
            self.restart(name)

    def _end_of(self, seconds: float) -> float:
        return min(self.house.world.now() + seconds, self.ends_at)

    def _until(self, seconds: float, end: Callable[[], None]) -> None:
        def once() -> None:
            if once in self._ends:
                self._ends.remove(once)
                end()

        self._ends.append(once)
        self.house.world.call_later(seconds, once)
