"""A virtual clock over a heap, and machines driven by it. Same seed, same history: nothing here looks at real time or chance.

A `Node` is one life of one process: machine, ports, inbox. Killing it drops its ports; a restart is a new node.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from ..core.effects import Effect
from ..core.events import Event, TimerFired
from ..ports import Machine, Ports


class World:
    """Satisfies ports.Clock."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self._now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._tie = count()  # equal times run in the order they were asked for
        self.steps = 0

    def now(self) -> float:
        return self._now

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        if delay_s < 0:
            raise ValueError("time does not go back")
        heappush(self._heap, (self._now + delay_s, next(self._tie), action))

    def run(self, until: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Run to `until` seconds, or until `done()`; true if done."""
        while self._heap and self._heap[0][0] <= until:
            self._now, _, action = heappop(self._heap)
            self.steps += 1
            action()
            if done():
                return True
        self._now = max(self._now, until)
        return done()


@dataclass(eq=False)
class Node:
    """Drives one machine in a world. `check` sees every (node, event, effects) after it happened."""

    world: World
    machine: Machine
    ports: Ports | None = None
    check: Callable[["Node", Event, list[Effect]], None] | None = None
    alive: bool = True
    paused_until: float = 0.0
    history: list[tuple[float, Event]] = field(default_factory=list)
    _armed: float | None = None
    _inbox: deque[Event] = field(default_factory=deque)
    _busy: bool = False
    _wakes: bool = False

    def post(self, event: Event) -> None:
        """The sink of this node's adapters. What reaches a dead node is lost; a paused one takes it later, in order."""
        if self.alive:
            self._inbox.append(event)
            self._drain()

    def start(self) -> None:
        self._perform(TimerFired(), self.machine.start(self.world.now()))

    def _drain(self) -> None:
        """An adapter may answer while effects are being performed: its event waits its turn, as in the live driver."""
        while self._inbox and not self._busy and self.alive:
            now = self.world.now()
            if now < self.paused_until:
                return self._wake_later(self.paused_until - now)
            event = self._inbox.popleft()
            self._perform(event, self.machine.handle(event, now))

    def _wake_later(self, seconds: float) -> None:
        if not self._wakes:
            self._wakes = True
            self.world.call_later(seconds, self._wake)

    def _wake(self) -> None:
        self._wakes = False
        self._drain()

    def _perform(self, event: Event, effects: list[Effect]) -> None:
        assert self.ports is not None
        self.history.append((self.world.now(), event))
        if self.check:
            self.check(self, event, effects)
        self._busy = True
        for effect in effects:
            self.ports.perform(effect)
        self._busy = False
        self._arm()
        self._drain()

    def _arm(self) -> None:
        deadline = self.machine.deadline
        if deadline is None or deadline == self._armed:
            return
        self._armed = deadline
        self.world.call_later(max(0.0, deadline - self.world.now()), lambda: self._timer(deadline))

    def _timer(self, deadline: float) -> None:
        if self._armed == deadline and self.alive:
            self._armed = None
            self.post(TimerFired())
