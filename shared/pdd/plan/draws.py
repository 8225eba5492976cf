"""What chance decides about one storm: the house, and the schedule of its faults. All draws come before the first event."""

from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from ..adapters.engine_scripted import Script
from ..adapters.kv_memory_lines import RandomFaults
from ..core.cost import EngineCost
from ..core.ids import RequestId, Role
from ..core.policies import POLICIES
from ..core.routing import RoutingSettings
from ..core.singular import SingularSettings
from .entries import STORM_S, Act, ActOn, Timed
from .house_parts import EngineSpec, HouseSpec
from .stages import Stage, member

if TYPE_CHECKING:
    from .storm import Storm

WORKERS = (Role.PREFILL, Role.RELAY, Role.MAIN)
SLOW = EngineCost(step_s=0.15, prefill_tokens_per_s=200.0, import_bytes_per_s=1e5)
SITES: list[dict[str, str]] = [{}, {}, {"m2": "c"}, {"p2": "c"}, {"r2": "b"}, {"m1": "a"}, {"m1": "c", "m2": "a"}]


def spec(rng: Random, seed: int) -> HouseSpec:
    pick = rng.choice
    engine = EngineSpec(
        pages=pick([400, 400, 400, 48, 36]),
        page_size=pick([16, 16, 32]),
        max_sequences=pick([2, 8]),
        chunk_tokens=pick([16, 64]),
    )
    counts = {role: pick([1, 1, 2, 3]) for role in WORKERS}
    slow = pick(["", "", "p1", "r1", "m1"])
    return HouseSpec(
        prefills=counts[Role.PREFILL],
        relays=counts[Role.RELAY] if rng.random() < 0.7 else 0,
        mains=counts[Role.MAIN],
        sites=pick(SITES),
        engines={slow: replace(engine, cost=SLOW)} | dict.fromkeys(WORKERS, engine),
        script=Script(seed=seed, mean_outputs=pick([0, 0, 40])),
        line_bytes_per_s=pick([2000.0, 8000.0, 8000.0, 100_000.0]),
        answer_s=pick([0.0, 0.0, 0.0, 0.02, 0.2]),
        answer_at=pick(["", "", "p1"]),
        staging_bytes=pick([1 << 26] * 6 + [10_000, 6_000]),
        routing=RoutingSettings(
            line_bytes_per_s=pick([4000.0, 4000.0, 500.0]), relay_price_s=0.3, main_alone_tokens=pick([0, 40])
        ),
        relay_bound=pick([0, 0, 8, 30]),
        singular=SingularSettings(
            cap=pick([0.0, 0.5, 1.0, 1.0]), gap=pick([0.1, 2.0, 2.0]), warm_up=pick([False, True])
        ),
        policy=pick(list(POLICIES)),
    )


SHORT = [Stage.YIELDED] * 4 + [Stage.CATCH_UP, Stage.LOOKING, Stage.LEARNING] * 2  # else seldom met


class Schedule:
    """Draws the entries of one storm, in an order that no left out entry changes."""

    def __init__(self, storm: "Storm", rng: Random) -> None:
        self.storm, self.rng = storm, rng
        self.faults, self.house = storm.faults, storm.house
        self.sites = self.house.sites
        self.workers = {n: p.me.role for n, p in self.house.processes.items() if p.me.role in WORKERS}

    def draw(self) -> None:
        rng = self.rng
        self._weather()
        count = rng.randint(4, 7)
        burst = rng.uniform(1.2, 6) if rng.random() < 0.4 else None
        for i in range(count):
            self._request(f"q{i}", rng.uniform(1.2, 10) if burst is None else burst + rng.uniform(0, 0.3))
        for _ in range(rng.choice([0, 0, 1, 2])):
            self._line()
        for _ in range(rng.choice([0, 0, 1, 2])):
            self._partition()
        for name, role in self.workers.items():
            self._worker(name, role)
        if rng.random() < 0.4:
            self._late_router()
        for _ in range(rng.choice([0, 1, 2, 3, 4])):
            self._ambush()
        if rng.random() < 0.1:
            self._once("router-crash", rng.uniform(2, STORM_S), self.faults.crash_router)
        if rng.random() < 0.3:
            self._crash("index", Role.INDEX, rng.uniform(0, STORM_S - 3))

    # -- all the time -------------------------------------------------------------------------------------------------

    def _weather(self) -> None:
        rng, faults = self.rng, self.faults
        for name, chance, more in (
            ("loss", rng.choice([0, 0, 0.02, 0.1, 0.3]), {}),
            ("duplicate", rng.choice([0, 0.05, 0.2]), {}),
            ("reorder", rng.choice([0, 0.05, 0.2]), {"late_s": rng.choice([0.3, 1.0, 4.0])}),
        ):
            if chance:
                self._once(
                    name, 0.0, partial(faults.weather, **{name: chance}, **more), f"{name} {chance} {more or ''}"
                )
        if rng.random() < 0.4:
            chances = {"lose": 0.05, "double": 0.1, "delay": 0.1, "damage": 0.1, "cut": 0.02, "late_s": 0.3}
            fault = RandomFaults(self.house.world.rng, **chances)
            self._once("bad-chunks", 0.0, partial(faults.damage_lines, fault))

    # -- requests -----------------------------------------------------------------------------------------------------

    def _request(self, name: str, when: float) -> None:
        rng = self.rng
        shared, own = rng.choice([0, 64, 130]), rng.randint(1, 150)
        ids = tuple(7 + k for k in range(shared)) + tuple(rng.randrange(3, 31_000) for _ in range(own))
        wanted: dict[str, Any] = {
            "max_tokens": rng.choice([1, 2, 3] + [rng.randint(4, 90)] * 3 + [rng.randint(60, 220)] * 4),
            "handover_after": rng.choice([0, 0, 0, 1, 2, 17, 40]),
            "route": rng.choice(["", "", "P-RLD-MD", "P-RLD-MD", "P-MD"]),
        }
        told = f"submit {name}: {len(ids)} ids, {wanted['max_tokens']} wanted, {wanted['route'] or 'any route'}"
        self._once("submit", when, partial(self._submit, name, ids, wanted), told)
        if rng.random() < 0.1:
            self._once("leave", when + rng.uniform(0, 5), partial(self.faults.leave, RequestId(name)), f"leave {name}")

    def _submit(self, name: str, ids: tuple[int, ...], wanted: dict[str, Any]) -> None:
        if self.house.processes["router"].node.alive:
            self.house.submit(ids, name=name, **wanted)

    # -- faults at their time -----------------------------------------------------------------------------------------

    def _line(self) -> None:
        start, seconds, kind, act = self.rng.uniform(0, STORM_S - 8), *self._line_fault()
        self._once(kind, start, act, f"{kind} for {seconds:.1f} s")

    def _line_fault(self) -> tuple[float, str, Act]:
        (one, other), seconds = self._two_sites(), self.rng.uniform(0.5, 8)
        kind = self.rng.choice(["cut-line", "stall-line"])
        bad = self.faults.cut_line if kind == "cut-line" else self.faults.stall_line
        return seconds, kind, partial(bad, one, other, seconds)

    def _partition(self) -> None:
        start, seconds, kind, act = self.rng.uniform(0, STORM_S - 8), *self._bus_fault()
        self._once(kind, start, act, f"{kind} for {seconds:.1f} s")

    def _bus_fault(self) -> tuple[float, str, Act]:
        """Between sites, or all that one process says or hears."""
        rng, faults, seconds = self.rng, self.faults, self.rng.uniform(0.5, 10)
        one, other = self._two_sites()
        name = rng.choice(list(self.workers))
        kind = rng.choice(["partition", "one-way", "one-way", "mute", "deafen", "lost-beats"])
        acts: dict[str, Act] = {
            "partition": partial(faults.partition, one, other, seconds),
            "one-way": partial(faults.one_way, one, other, seconds),
            "mute": partial(faults.mute, name, seconds),
            "deafen": partial(faults.deafen, name, seconds),
            "lost-beats": partial(faults.lose_beats, name, seconds),
        }
        return seconds, kind, acts[kind]

    def _two_sites(self) -> tuple[str, str]:
        one, other = self.rng.sample(self.sites, 2)
        return one, other

    def _worker(self, name: str, role: Role) -> None:
        rng = self.rng
        crashes = rng.choice([0, 0, 0, 0, 1, 1, 2])
        first = rng.uniform(0, STORM_S - 3)
        for i in range(crashes):
            self._crash(name, role, first if not i else min(first + rng.uniform(0.3, 4), STORM_S - 3))
        if rng.random() < 0.25:
            start, seconds = rng.uniform(0, STORM_S - 6), rng.uniform(1, 6)
            kind = f"pause-{role.value}"
            self._once(kind, start, partial(self.faults.pause, name, seconds), f"pause {name} for {seconds:.1f} s")

        if role is not Role.PREFILL and rng.random() < 0.1:
            start, seconds = rng.uniform(0, STORM_S - 6), rng.uniform(1, 6)
            act = partial(self.faults.spoil_imports, name, seconds)
            self._once("bad-import", start, act, f"{name} imports nothing for {seconds:.1f} s")

    def _late_router(self) -> None:
        rng = self.rng
        delay_s, seconds = rng.uniform(0.1, 2.0), rng.uniform(3, 15)
        act = partial(self.faults.delay_router, delay_s, seconds)
        self._once("late-router", rng.uniform(0, 5), act, f"router is {delay_s:.1f} s late for {seconds:.1f} s")

    def _crash(self, name: str, role: Role, when: float) -> None:
        down = self.rng.choice([0.01, 0.3, 1.0, 3.0])
        crash = Timed(when, f"crash-{role.value}", partial(self.faults.crash, name))
        back = Timed(when + down, "", partial(self.faults.restart, name))
        self.storm.entry(f"crash {name} for {down} s", crash, back)

    def _once(self, kind: str, when: float, act: Act, told: str = "") -> None:
        self.storm.entry(told or kind, Timed(when, kind, act))

    # -- faults at their stage ----------------------------------------------------------------------------------------

    def _ambush(self) -> None:
        """On whoever plays a role in the request that comes first to a stage."""
        rng, at = self.rng, self.rng.choice([*Stage, *SHORT])
        role, seconds, down = rng.choice(WORKERS), rng.uniform(0.3, 6), rng.choice([0.01, 0.3, 3.0])
        (line_s, line_kind, cut), (bus_s, bus_kind, block) = self._line_fault(), self._bus_fault()
        choices: list[tuple[str, str, ActOn]] = [
            ("leave", "leave", self.faults.leave),
            (f"crash-{role.value}", f"crash {role.value} for {down} s", partial(self._down, role, down)),
            (f"pause-{role.value}", f"pause {role.value} for {seconds:.1f} s", partial(self._pause, role, seconds)),
            (line_kind, f"{line_kind} for {line_s:.1f} s", lambda request: cut()),
            (bus_kind, f"{bus_kind} for {bus_s:.1f} s", lambda request: block()),
        ]
        kind, told, act = rng.choice(choices)
        self.storm.ambush(f"{told}, when {at.name.lower()}", kind, at, act)

    def _down(self, role: Role, seconds: float, request: RequestId) -> None:
        if name := member(self.house, request, role):
            self.faults.crash(name)
            self.house.world.call_later(seconds, partial(self.faults.restart, name))

    def _pause(self, role: Role, seconds: float, request: RequestId) -> None:
        if name := member(self.house, request, role):
            self.faults.pause(name, seconds)
