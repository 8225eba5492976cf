"""Random fault schedules over a house, with the laws checked after every event. Same seed, same story.

A schedule draws: workers of each role at two or three sites, slow and small ones, requests with forced or free fences, loss,
doubling and lateness on the bus, damaged chunks, cuts and stalls of lines, partitions, crashes, restarts and pauses, clients that
leave; some faults at a time, others when a request reaches a stage. Faults end at `STORM_S`; then all must end by itself in time.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from ..core.effects import Effect
from ..core.events import Event
from ..core.ids import RequestId
from ..sim.world import Node
from . import draws
from .bounds import Bounds
from .coverage import Coverage
from .entries import STORM_S, Act, ActOn, Ambush, Timed
from .faults import Faults
from .house import House
from .house_parts import Client
from .laws import Laws, Violation
from .stages import Stage, stage
from .story import request_in


@dataclass(slots=True)
class Storm:
    """One seed's schedule. Entries numbered in `without` are left out, and nothing else is drawn differently.

    `watch` sees what the laws see; `tell` hears (time, what was done to the house).
    """

    seed: int
    without: frozenset[int] = frozenset()
    watch: Callable[[Node, Event, list[Effect]], None] = field(default=lambda node, event, effects: None)
    tell: Callable[[float, str], None] = field(default=lambda at, what: None)
    house: House = field(init=False)
    faults: Faults = field(init=False)
    laws: Laws = field(default_factory=Laws)
    coverage: Coverage = field(default_factory=Coverage)
    entries: dict[int, str] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    ambushes: list[Ambush] = field(default_factory=list)
    _drawn: int = 0

    def __post_init__(self) -> None:
        rng = Random(self.seed)
        self.house = House(draws.spec(rng, self.seed), self.seed, self._check)
        self.faults = Faults(self.house, STORM_S)
        draws.Schedule(self, rng).draw()
        self.house.world.call_later(STORM_S, self._calm)
        self._watch_rows()

    # -- the schedule -------------------------------------------------------------------------------------------------

    def entry(self, name: str, *acts: Timed) -> None:
        if self._enters(name):
            for timed in acts:
                self.house.world.call_later(timed.at, partial(self._act, name, timed.kind, timed.act))

    def ambush(self, name: str, kind: str, at: Stage, act: ActOn) -> None:
        if self._enters(name):
            self.ambushes.append(Ambush(at, name, kind, act))

    def _enters(self, name: str) -> bool:
        self._drawn += 1
        if self._drawn in self.without:
            return False
        self.entries[self._drawn] = name
        return True

    def _act(self, name: str, kind: str, act: Act) -> None:
        if kind:
            self._tell(name)
            self.counts[kind] += 1
            self.coverage.strike(kind, self.house, self.house.clients.all)
        act()
        self._watch_rows()

    def _calm(self) -> None:
        self._tell("calm")
        self.faults.calm()
        self._watch_rows()

    def _tell(self, what: str) -> None:
        now = self.house.world.now()
        self.story.append(f"{now:7.2f} {what}")
        self.tell(now, what)

    def _watch_rows(self) -> None:
        for process in self.house.processes.values():
            self.coverage.watch(process.node.machine)

    def _check(self, node: Node, event: Event, effects: list[Effect]) -> None:
        self.watch(node, event, effects)
        self.laws.check(node, event, effects)
        if self.ambushes and self.house.world.now() < STORM_S:
            if request := request_in(event):
                self._spring(request)

    def _spring(self, request: RequestId) -> None:
        met = stage(self.house, request)
        for ambush in [one for one in self.ambushes if one.stage is met]:
            self.ambushes.remove(ambush)
            act = partial(ambush.act, request)
            self.house.world.call_later(0.0, partial(self._act, f"{ambush.name}, of {request}", ambush.kind, act))

    # -- the verdict --------------------------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """What happened. Raises Violation."""
        bounds = Bounds(self.house, STORM_S)
        try:
            self.house.run(STORM_S)
            self.house.settle(bounds.given_back_s)
        except Violation:
            raise
        except Exception as error:
            raise Violation(type(error).__name__, str(error)) from error
        for client in self.house.clients.all.values():
            self._judge(client)
        bounds.check(self.laws)
        if left := self.house.leftovers():
            raise Violation("given back", f"after {bounds.given_back_s:.0f} s of calm: {left}")
        self.counts["events"] = self.house.world.steps
        return self.counts

    def _judge(self, client: Client) -> None:
        name, whole = client.asked.request, self.house.baseline(client)
        if client.ids != whole[: len(client.ids)]:
            wrong = next((i for i, (a, b) in enumerate(zip(client.ids, whole, strict=False)) if a != b), len(whole))
            raise Violation("the same ids", f"{name} differs from one engine at index {wrong} of {len(whole)}")
        if client.finish and len(client.ids) != len(whole):
            raise Violation("the same ids", f"{name} ended after {len(client.ids)} of {len(whole)} outputs")
        reason = client.finish.reason if client.finish else client.problem.code if client.problem else "gone"
        self.counts[f"end: {reason}"] += 1
