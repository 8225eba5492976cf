"""Runs one machine against the real world: one queue in, one timer, effects out. Keeps a history that replays.

`post` is safe from any thread. The machine is only ever touched on the loop's thread.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable

from ..core.events import Event, TimerFired
from ..ports import Machine, Ports


class LoopClock:
    """Monotonic seconds; actions run on the loop it was made in."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return time.monotonic()

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._loop.call_later(delay_s, action)


class LiveDriver:
    """`keep`: how many of the last (now, event) pairs stay in `history`; 0 keeps none."""

    def __init__(self, machine: Machine, clock: LoopClock, *, keep: int = 0) -> None:
        self.machine, self.clock = machine, clock
        self.ports: Ports | None = None  # adapters need `post` first, so ports come second
        self.history: deque[tuple[float, Event]] = deque(maxlen=keep)
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._inbox: deque[Event] = deque()
        self._woken = asyncio.Event()

    def post(self, event: Event) -> None:
        self._inbox.append(event)
        if threading.get_ident() == self._thread:
            self._woken.set()
        else:
            self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Until cancelled, or until the machine or an adapter raises: then the process should end."""
        assert self.ports is not None
        self._perform(TimerFired(), start=True)
        while True:
            await self._wait()
            while self._inbox:
                self._perform(self._inbox.popleft())
            deadline = self.machine.deadline
            if deadline is not None and self.clock.now() >= deadline:
                self._perform(TimerFired())

    async def _wait(self) -> None:
        deadline = self.machine.deadline
        delay = None if deadline is None else max(0.0, deadline - self.clock.now())
        timer = None if delay is None else self._loop.call_later(delay, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if timer:
                timer.cancel()
        self._woken.clear()

    def _perform(self, event: Event, *, start: bool = False) -> None:
        assert self.ports is not None
        now = self.clock.now()
        if self.history.maxlen:
            self.history.append((now, event))
        effects = self.machine.start(now) if start else self.machine.handle(event, now)
        for effect in effects:
            self.ports.perform(effect)
