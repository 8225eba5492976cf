"""MD: receives the prompt's KV across the WAN, shadows RLD's outputs by extending over them, and speaks from the fence to the end.

It speaks only after a Yield (or, without RLD, after P's closing frame), so no index has two writers.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar

from ..effects import Count, Speak
from ..events import (
    KvClosed,
    KvDamaged,
    KvExpected,
    KvImported,
    KvImportFailed,
    KvLanded,
    KvRefused,
    SequenceOpened,
    SequenceRefused,
)
from ..ids import Peer, Role
from ..messages import Assignment, MainReady, PrepareMain, Taken, Written, Yield
from .held import Computed, Wrote
from .receiver import Filling, Receiver


class Phase(Enum):
    OPENING = auto()
    FILLING = auto()
    SHADOWING = auto()  # whole; extends over what RLD writes
    SPEAKING = auto()
    FINISHED = auto()


@dataclass(slots=True)
class Following(Filling):
    eager: dict[int, Written] = field(default_factory=dict)  # RLD's outputs that do not continue ours yet, by start
    reported: int = -1
    spoke_at: float = 0.0


class MainDecode(Receiver[Following]):
    OPENING = Phase.OPENING
    COMMAND = PrepareMain

    def make(self, command: Assignment, router: Peer) -> Following:
        return Following(command, router, Phase.OPENING, self.now, self.now)

    # -- from empty to ready ------------------------------------------------------------------------------------------

    def alone(self, held: Following) -> None:
        held.whole = True
        self._speak(held)

    def fill(self, held: Following) -> None:
        self.enter(held, Phase.FILLING)

    def filled(self, held: Following) -> None:
        if held.command.warm_up:
            return self.enter(held, Phase.FINISHED)  # nobody waits for a word
        if held.command.cast.relay is None:
            return self._speak(held)  # P's closing frame is its yield
        self.enter(held, Phase.SHADOWING)
        self._follow(held)
        self._report(held)

    # -- shadowing ----------------------------------------------------------------------------------------------------

    def eager_written(self, held: Following, sender: Peer, written: Written) -> None:
        if sender != held.command.cast.relay:
            return self.drop("cast")
        held.eager[written.start] = written
        if held.phase is Phase.SHADOWING:
            self._follow(held)

    def _follow(self, held: Following) -> None:
        known = len(held.out)
        for start in sorted(held.eager):
            if start > len(held.out):
                break  # a lost frame: the Yield carries all
            held.learn(held.eager.pop(start))
        self.append(held, known)

    def extended(self, held: Following, event: Computed) -> None:
        if held.computed - held.command.prompt_len != held.reported:
            if self.every(held, "progress", self.timeouts.tick_s / 2):
                self._report(held)

    def _report(self, held: Following) -> None:
        """State, repeated until a Yield comes."""
        held.sent_at["ready"] = self.now
        held.reported = min(held.computed - held.command.prompt_len, len(held.out))
        relay = held.command.cast.relay
        assert relay is not None
        self.send(held, relay, MainReady(held.request, held.epoch, held.reported))

    # -- taking over --------------------------------------------------------------------------------------------------

    def yielded(self, held: Following, sender: Peer, message: Yield) -> None:
        """RLD's word, or the router's repeat of it."""
        if sender not in (held.command.cast.relay, held.router):
            return self.drop("cast")
        known = len(held.out)
        held.learn(message.written)
        if len(held.out) != message.fence:
            return self.drop("fence")  # ids are missing in between: cannot be, a Yield carries all
        self.append(held, known)
        self._take(held, sender)
        self.span(held, "handover", held.phase_at, fence=message.fence, extend=message.fence - known)
        held.fence = message.fence
        self._speak(held)

    def _take(self, held: Following, sender: Peer) -> None:
        if sender.role is not Role.ROUTER:
            self.send(held, sender, Taken(held.request, held.epoch))

    def yielded_again(self, held: Following, sender: Peer, message: Yield) -> None:
        self._take(held, sender)

    def _speak(self, held: Following) -> None:
        held.own_start = len(held.out)
        held.spoke_at = self.now
        held.eager.clear()
        self.enter(held, Phase.SPEAKING)
        self.emit(Speak(held.key))

    def wrote(self, held: Following, event: Wrote) -> None:
        if held.fence == len(held.out):
            self.span(held, "extend", held.spoke_at, outputs=held.fence - held.base)
            held.spoke_at = self.now
        held.learn(event.written)
        self.speak(held.router, event.written)
        self.emit(Count("pdd_tokens_written_total", (("role", self.me.role),), len(event.written.ids)))
        if held.finish:
            self.enter(held, Phase.FINISHED)

    def let_go(self, held: Following) -> None:
        super().let_go(held)
        if held.spoke_at:
            tokens = len(held.out) - (held.own_start or 0)
            self.span(held, "main", held.spoke_at, tokens=tokens)

    # -- time ---------------------------------------------------------------------------------------------------------

    def work(self, held: Following) -> None:
        if held.phase is Phase.FILLING:
            self.work_filling(held)
        elif held.phase is Phase.SHADOWING and self.now - held.sent_at["ready"] > self.timeouts.retry_s:
            self._report(held)

    ROWS: ClassVar = {
        (Phase.OPENING, SequenceOpened): "opened",
        (Phase.OPENING, SequenceRefused): "refused",
        (Phase.FILLING, KvExpected): "expected",
        (Phase.FILLING, KvRefused): "no_staging",
        (Phase.FILLING, KvLanded): "landed",
        (Phase.FILLING, KvDamaged): "damaged",
        (Phase.FILLING, KvClosed): "closed",
        (Phase.FILLING, KvImported): "imported",
        (Phase.FILLING, KvImportFailed): "import_failed",
        **{(phase, Written): "eager_written" for phase in (Phase.OPENING, Phase.FILLING, Phase.SHADOWING)},
        (Phase.SPEAKING, Written): "late",  # sent before the Yield, arrived after it
        (Phase.FINISHED, Written): "late",
        (Phase.SHADOWING, Computed): "extended",
        (Phase.SHADOWING, Yield): "yielded",
        (Phase.SPEAKING, Yield): "yielded_again",
        (Phase.FINISHED, Yield): "yielded_again",
        (Phase.SPEAKING, Wrote): "wrote",
        **{(phase, Computed): "late_computed" for phase in (Phase.FILLING, Phase.SPEAKING, Phase.FINISHED)},
        **{
            (phase, event): "late"
            for phase in (Phase.SHADOWING, Phase.SPEAKING, Phase.FINISHED)
            for event in (KvExpected, KvRefused, KvLanded, KvDamaged, KvClosed)
        },
    }
