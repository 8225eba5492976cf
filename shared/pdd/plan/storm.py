"""Random fault schedules over a house, with the laws checked after every event. Same seed, same story.

A schedule draws: workers of each role, requests with forced or free fences, loss, doubling and lateness on the bus, damaged and lost
chunks, cuts and stalls of the line, crashes, restarts and pauses of workers, a crash of the router or the index, clients that leave.
Faults end at `STORM_S`; then everything must end by itself within `CALM_S`.
"""

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from ..adapters.engine_scripted import Script
from ..adapters.kv_memory_lines import RandomFaults, no_fault
from ..core.effects import Effect, Send
from ..core.events import Event
from ..core.ids import Peer, RequestId, Role
from ..core.messages import Tokens
from ..core.policies import POLICIES
from ..core.roles.main_decode import MainDecode
from ..core.roles.relay_decode import RelayDecode
from ..core.roles.worker import Worker
from ..core.routing import RoutingSettings
from ..core.singular import SingularSettings
from ..core.timeouts import TimeOuts
from ..sim.world import Node
from .house import Client, EngineSpec, House, HouseSpec

STORM_S = 20.0
CALM_S = 90.0


class Violation(AssertionError):
    """A law does not hold; the message says which, where and when."""


@dataclass(slots=True)
class Laws:
    """Watches every machine. `writers`: who wrote (request, epoch, index); nobody else may."""

    writers: dict[tuple[RequestId, int, int], Peer] = field(default_factory=dict)
    fences: dict[tuple[RequestId, int], int] = field(default_factory=dict)
    rows: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def check(self, node: Node, event: Event, effects: list[Effect]) -> None:
        machine = node.machine
        if not isinstance(machine, Worker):
            return
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Tokens) and effect.message.own:
                self._written(machine, effect.message)
        for held in machine.held.values():
            if held.fence is not None and isinstance(machine, RelayDecode):
                fence = self.fences.setdefault((held.request, held.epoch), held.fence)
                if fence != held.fence:
                    raise Violation(f"two fences of {held.key}: {fence} and {held.fence}")

    def _written(self, machine: Worker[Any], tokens: Tokens) -> None:
        for written in tokens.written:
            fence = self.fences.get((written.request, written.epoch))
            for index in range(written.start, written.stop):
                key = (written.request, written.epoch, index)
                writer = self.writers.setdefault(key, machine.me)
                if writer != machine.me:
                    raise Violation(f"two writers of {key}: {writer} and {machine.me}")
                if fence is not None and isinstance(machine, MainDecode) == (index < fence):
                    raise Violation(f"{machine.me} wrote {key} across the fence at {fence}")


@dataclass(slots=True)
class Storm:
    """One seed's schedule. `run` raises Violation, or returns what happened."""

    seed: int
    house: House = field(init=False)
    rng: Random = field(init=False)
    laws: Laws = field(default_factory=Laws)
    story: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    router_died: bool = False

    def __post_init__(self) -> None:
        self.rng = Random(self.seed)
        pick = self.rng.choice
        script = Script(seed=self.seed, mean_outputs=pick([0, 0, 40]))
        small = pick([False, False, True])
        engine = EngineSpec(
            pages=pick([24, 40]) if small else 400, max_sequences=pick([2, 8]), chunk_tokens=pick([16, 64])
        )
        spec = HouseSpec(
            prefills=pick([1, 2]),
            relays=pick([0, 1, 2]),
            mains=pick([1, 2]),
            engines={Role.PREFILL: engine, Role.RELAY: engine, Role.MAIN: engine},
            script=script,
            line_bytes_per_s=pick([2000.0, 4000.0, 100_000.0]),
            routing=RoutingSettings(line_bytes_per_s=4000.0, relay_price_s=0.3, main_alone_tokens=pick([0, 40])),
            timeouts=TimeOuts(),
            relay_bound=pick([0, 0, 8, 30]),
            singular=SingularSettings(cap=pick([0.0, 0.05, 1.0]), gap=pick([0.1, 2.0])),
            policy=pick(list(POLICIES)),
        )
        self.house = House(spec, self.seed, self.laws.check)

    # -- the schedule -------------------------------------------------------------------------------------------------

    def at(self, when: float, what: str, action: Any) -> None:
        def act() -> None:
            self.story.append(f"{self.house.world.now():7.2f} {what}")
            self.counts[what.split()[0]] += 1
            action()

        self.house.world.call_later(when, act)

    def schedule(self) -> None:
        rng, house = self.rng, self.house
        weather = house.hub.weather
        weather.loss = rng.choice([0, 0, 0.02, 0.1, 0.3])
        weather.duplicate = rng.choice([0, 0.05, 0.2])
        weather.reorder, weather.late_s = rng.choice([0, 0.05, 0.2]), rng.choice([0.3, 1.0, 4.0])
        self._lines()
        for i in range(rng.randint(4, 6)):
            self._request(i)
        for name, process in list(house.processes.items()):
            if process.me.role not in (Role.ROUTER, Role.INDEX):
                self._worker(name, process.me.role)
        if rng.random() < 0.1:
            self.at(rng.uniform(2, STORM_S), "router-crash", self._crash_router)
        if rng.random() < 0.3:
            self._crash("index", Role.INDEX, rng.uniform(0, STORM_S - 3))
        house.world.call_later(STORM_S, self._calm)

    def _lines(self) -> None:
        rng, lines = self.rng, self.house.lines
        if rng.random() < 0.4:
            lines.fault = RandomFaults(
                self.house.world.rng, lose=0.05, double=0.1, delay=0.1, damage=0.1, cut=0.02, late_s=0.3
            )
        for _ in range(rng.choice([0, 0, 1, 2])):
            start, seconds = rng.uniform(0, STORM_S - 8), rng.uniform(0.5, 8)
            bad = rng.choice(["cut", "stall"])
            self.at(start, f"{bad}-line", partial(getattr(lines, bad), "a", "b"))
            self.at(start + seconds, "restore-line", partial(lines.restore, "a", "b"))
        for _ in range(rng.choice([0, 0, 1])):
            start, seconds = rng.uniform(0, STORM_S - 8), rng.uniform(0.5, 8)
            self.at(start, "partition", partial(self._partition, seconds))

    def _partition(self, seconds: float) -> None:
        self.house.world.call_later(seconds, self.house.hub.cut_sites("a", "b"))

    def _request(self, i: int) -> None:
        rng = self.rng
        shared, own = rng.choice([0, 64, 130]), rng.randint(1, 150)
        ids = tuple(7 + k for k in range(shared)) + tuple(rng.randrange(3, 31_000) for _ in range(own))
        wanted: dict[str, Any] = {
            "max_tokens": rng.choice([1, 2, 3] + [rng.randint(4, 90)] * 5),
            "handover_after": rng.choice([0, 0, 0, 1, 2, 17, 40]),
            "route": rng.choice(["", "", "P-RLD-MD", "P-RLD-MD", "P-MD"]),
        }
        when = rng.uniform(1.2, 10)
        self.at(when, f"submit q{i}", lambda: self._submit(i, ids, wanted))
        if rng.random() < 0.15:
            self.at(when + rng.uniform(0, 5), f"leave q{i}", lambda: self._leave(f"q{i}"))

    def _submit(self, i: int, ids: tuple[int, ...], wanted: dict[str, Any]) -> None:
        if self.house.processes["router"].node.alive:
            self.house.submit(ids, name=f"q{i}", **wanted)

    def _leave(self, name: str) -> None:
        client = self.house.clients.all.get(RequestId(name))
        if client and not client.ended:
            self.house.leave(client)

    def _worker(self, name: str, role: Role) -> None:
        rng = self.rng
        for _ in range(rng.choice([0, 0, 0, 1, 2])):
            self._crash(name, role, rng.uniform(0, STORM_S - 3))
        if rng.random() < 0.25:
            start, seconds = rng.uniform(0, STORM_S - 6), rng.uniform(1, 6)
            self.at(start, f"pause {name}", lambda: self._pause(name, seconds))

    def _pause(self, name: str, seconds: float) -> None:
        self.house.processes[name].node.paused_until = self.house.world.now() + seconds

    def _crash(self, name: str, role: Role, when: float) -> None:
        down = self.rng.choice([0.01, 0.3, 1.0, 3.0])
        self.at(when, f"crash {name}", lambda: self.house.kill(name))
        self.at(when + down, f"restart {name}", lambda: self._restart(name, role))

    def _restart(self, name: str, role: Role) -> None:
        if not self.house.processes[name].node.alive:
            self.house.boot(role, name)

    def _crash_router(self) -> None:
        """Its clients' connections end with it; a new one serves new requests."""
        self.router_died = True
        self.house.kill("router")
        for client in self.house.clients.all.values():
            client.gone = client.gone or not client.ended
        self.house.boot(Role.ROUTER, "router")

    def _calm(self) -> None:
        house = self.house
        house.hub.weather.loss = house.hub.weather.duplicate = house.hub.weather.reorder = 0.0
        house.lines.fault = no_fault
        house.lines.restore("a", "b")

    # -- the verdict --------------------------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        try:
            self.schedule()
            self.house.run(STORM_S)
            self.house.settle(CALM_S)
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"{type(error).__name__}: {error}") from error
        for client in self.house.clients.all.values():
            self._judge(client)
        if left := self.house.leftovers():
            raise Violation(f"not given back after {CALM_S} s of calm: {left}")
        self.counts["events"] = self.house.world.steps
        return self.counts

    def _judge(self, client: Client) -> None:
        name, whole = client.asked.request, self.house.baseline(client)
        if client.ids != whole[: len(client.ids)]:
            wrong = next(i for i, (a, b) in enumerate(zip(client.ids, whole, strict=False)) if a != b)
            raise Violation(f"{name} differs from one engine at index {wrong} of {len(whole)}")
        if client.finish and len(client.ids) != len(whole):
            raise Violation(f"{name} ended after {len(client.ids)} of {len(whole)} outputs")
        if not client.ended:
            raise Violation(f"{name} has not ended: {len(client.ids)} of {len(whole)} outputs")
        self.counts[
            f"end:{client.finish.reason if client.finish else client.problem.code if client.problem else 'gone'}"
        ] += 1
