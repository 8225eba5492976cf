"""A machine in a simulated fleet: as `world.Node`, without history, and with effects routed by a table instead of by matching."""

from collections import deque
from collections.abc import Callable, Mapping

from ..core.effects import Effect
from ..core.events import Event, TimerFired
from ..ports import Machine
from .world import World

Handlers = Mapping[type[Effect], Callable[..., None]]


class SimNode:
    """`handlers` has one entry for each kind of effect that this machine may ask for."""

    def __init__(self, world: World, machine: Machine, handlers: Handlers) -> None:
        self.world, self.machine, self.alive = world, machine, True
        self.events = 0
        self._handlers = handlers
        self._inbox: deque[Event] = deque()
        self._busy = False
        self._armed: float | None = None

    def post(self, event: Event) -> None:
        """What reaches a dead node is lost. What comes while effects are carried out waits its turn."""
        if not self.alive:
            return
        self._inbox.append(event)
        if not self._busy:
            self._drain()

    def start(self) -> None:
        self._carry_out(self.machine.start(self.world.now()))
        self._drain()

    def _drain(self) -> None:
        inbox, handle, now = self._inbox, self.machine.handle, self.world.now()
        while inbox and self.alive:
            self.events += 1
            self._carry_out(handle(inbox.popleft(), now))

    def _carry_out(self, effects: list[Effect]) -> None:
        self._busy = True
        handlers = self._handlers
        for effect in effects:
            handlers[type(effect)](effect)
        self._busy = False
        deadline = self.machine.deadline
        if deadline is not None and deadline != self._armed:
            self._armed = deadline
            self.world.call_later(max(0.0, deadline - self.world.now()), lambda: self._timer(deadline))

    def _timer(self, deadline: float) -> None:
        if self._armed == deadline and self.alive:
            self._armed = None
            self.post(TimerFired())
