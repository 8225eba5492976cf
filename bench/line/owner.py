"""The product's line owner, over the pipes of several senders in place of the router and its bus."""

import threading
import time
from typing import TYPE_CHECKING

import msgspec

from pdd.core.effects import Effect, Send
from pdd.core.line_owner import LineOwner
from pdd.core.messages import LineWants

from .end import sender

if TYPE_CHECKING:
    from .pair import Process

EVERY_S = 0.003  # as late as a message over a broker
TICK_S = 0.1


class Owner:
    """A thread that answers what the senders want. `close` it before them."""

    def __init__(self, senders: "list[Process]") -> None:
        self._senders = {sender(number): process for number, process in enumerate(senders)}
        self._owner, self._closed = LineOwner(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        ticked = time.monotonic()
        while not self._closed.wait(EVERY_S):
            now = time.monotonic()
            for peer, process in self._senders.items():
                for told in process.heard("wants"):
                    self._perform(self._owner.handle(peer, msgspec.convert(told["wants"], LineWants), now))
            if now - ticked > TICK_S:
                ticked = now
                self._perform(self._owner.tick(now))

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                self._senders[effect.to].tell("lease", lease=msgspec.to_builtins(effect.message))
