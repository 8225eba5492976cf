"""RLD: decodes from token 1 while the KV crosses to MD, then yields at a fence. The hand-over is decided in `_consider`.

After a Yield it never speaks an index at or after the fence, and keeps KV and ids until the router's Release.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar

from ..effects import Count, Hush, Speak
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
from ..ids import Peer
from ..messages import Assignment, Cut, CutAnswer, MainReady, PrepareRelay, Taken, Yield
from ..policies import POLICIES, Progress
from .receiver import Filling, Receiver
from .worker import Computed, Wrote

CROWDED = 0.5  # of RLD's places in use: its bound then holds


class Phase(Enum):
    OPENING = auto()
    FILLING = auto()
    RELAYING = auto()
    PAUSED = auto()  # at its bound: the KV is kept, the batch slot is not
    YIELDED = auto()
    FINISHED = auto()  # wrote the last token: never yields


@dataclass(slots=True)
class Relaying(Filling):
    main_known: int | None = None  # MD's report, once it is ready
    reports: int = 0
    backlog: int = 1 << 30  # at MD's last report
    no_main: bool = False  # promised by a cut, or nobody in the cast
    bounds_passed: int = 0  # how often the bound was reached while there was room to go on
    bound_lifted: bool = False
    taken_by_main: bool = False
    taken_by_router: bool = False
    whole_at: float = 0.0

    @property
    def bound(self) -> int | None:
        """Output index before which to pause; None: no bound."""
        if self.no_main or self.bound_lifted:
            return None
        if self.command.handover_after > self.base:
            return self.command.handover_after
        if not self.command.relay_bound:
            return None
        return self.base + self.command.relay_bound * (1 + self.bounds_passed)


class RelayDecode(Receiver[Relaying]):
    OPENING = Phase.OPENING
    COMMAND = PrepareRelay

    def make(self, command: Assignment, router: Peer) -> Relaying:
        held = Relaying(command, router, Phase.OPENING, self.now, self.now)
        held.no_main = command.cast.main is None
        return held

    # -- from empty to speaking ---------------------------------------------------------------------------------------

    def alone(self, held: Relaying) -> None:
        held.own_start = held.base
        held.whole = True
        self._relay(held)

    def fill(self, held: Relaying) -> None:
        self.enter(held, Phase.FILLING)

    def filled(self, held: Relaying) -> None:
        held.own_start = held.base + 1
        self._relay(held)

    def _relay(self, held: Relaying) -> None:
        held.whole_at = self.now
        self.enter(held, Phase.RELAYING)
        bound = held.bound
        if bound is not None and len(held.out) >= bound:
            self.enter(held, Phase.PAUSED)
        else:
            self.emit(Speak(held.key, bound))
        self._consider(held)

    def wrote(self, held: Relaying, event: Wrote) -> None:
        held.learn(event.written)
        self.speak(held.router, event.written)
        if not held.no_main:
            self.speak(held.command.cast.main, event.written)
        self.emit(Count("pdd_tokens_written_total", (("role", self.me.role),), len(event.written.ids)))
        if held.finish:
            self.enter(held, Phase.FINISHED)
            self._relayed(held, "finish")
        elif held.bound is not None and len(held.out) >= held.bound:
            self._at_bound(held)
        if held.phase is Phase.PAUSED or not held.whole or self._forced(held):
            self._consider(held)

    def _at_bound(self, held: Relaying) -> None:
        """With room to spare it goes on for as long again; under load it gives its place up and waits for MD."""
        if self._forced(held) or self.fullness >= CROWDED:
            self.emit(Count("pdd_relay_paused_total"))
            return self.enter(held, Phase.PAUSED)
        held.bounds_passed += 1
        self.emit(Speak(held.key, held.bound))

    @property
    def fullness(self) -> float:
        return self.load.running / max(1, self.card.max_sequences)

    def _forced(self, held: Relaying) -> bool:
        return held.command.handover_after > held.base and not held.bound_lifted

    # -- the hand-over ------------------------------------------------------------------------------------------------

    def _consider(self, held: Relaying) -> None:
        """Where a hand-over is decided: MD is ready, it is allowed, and the policy (or a forced fence, or the bound) says so."""
        if held.main_known is None or held.no_main or held.phase in (Phase.YIELDED, Phase.FINISHED):
            return
        if self._forced(held):
            due = max(len(held.out), held.base + 1) >= held.command.handover_after
        else:
            progress = Progress(len(held.out), held.main_known, held.reports, held.backlog, self.fullness)
            due = held.phase is Phase.PAUSED or not held.whole or POLICIES[held.command.policy].due(progress)
            held.backlog = progress.backlog
        if due:
            self._yield(held)

    def _yield(self, held: Relaying) -> None:
        """Before the prompt is whole here, the fence stands right after token 0, which MD has from its own closing frame."""
        held.fence = max(len(held.out), held.base + 1)
        self.emit(Hush(held.key))
        self.emit(Count("pdd_handovers_total", (("kind", held.command.policy),)))
        self._relayed(held, "yield")
        self.enter(held, Phase.YIELDED)
        self._send_yield(held)

    def _relayed(self, held: Relaying, why: str) -> None:
        start = held.whole_at or self.now
        self.span(held, "relay", start, tokens=len(held.out) - held.base, end=why)

    def _send_yield(self, held: Relaying) -> None:
        assert held.fence is not None
        held.sent_at["yield"] = self.now
        message = Yield(held.request, held.epoch, held.fence, held.outputs(held.base, held.fence))
        if not held.taken_by_main and held.command.cast.main:
            self.send(held, held.command.cast.main, message)
        if not held.taken_by_router:
            self.send(held, held.router, message)

    def main_ready(self, held: Relaying, sender: Peer, message: MainReady) -> None:
        if sender != held.command.cast.main:
            return self.drop("cast")
        held.main_known = max(held.main_known or 0, message.known)
        held.reports += 1
        self._consider(held)

    def main_still_ready(self, held: Relaying, sender: Peer, message: MainReady) -> None:
        """MD has not seen the Yield."""
        held.taken_by_main = False
        self._send_yield(held)

    def taken(self, held: Relaying, sender: Peer, message: Taken) -> None:
        held.taken_by_main |= sender == held.command.cast.main
        held.taken_by_router |= sender == held.router

    def cut(self, held: Relaying, sender: Peer, message: Cut) -> None:
        """A promise never to yield, so nothing more has to cross."""
        held.no_main = True
        if held.phase in (Phase.RELAYING, Phase.PAUSED):
            self._resume(held)  # past its bound, too
        self.send(held, sender, CutAnswer(held.request, held.epoch, promised=True))

    def cut_too_late(self, held: Relaying, sender: Peer, message: Cut) -> None:
        self.send(held, sender, CutAnswer(held.request, held.epoch, promised=False))

    # -- time ---------------------------------------------------------------------------------------------------------

    def work(self, held: Relaying) -> None:
        if held.phase is Phase.FILLING:
            self.work_filling(held)
        elif held.phase is Phase.PAUSED:
            patience = self.timeouts.handover_wait_s if self._forced(held) else self.timeouts.relay_wait_s
            if self.now - held.phase_at > patience:
                self.emit(Count("pdd_relay_bound_lifted_total"))
                held.bound_lifted = True
                self._resume(held)
        elif held.phase is Phase.YIELDED and not (held.taken_by_main and held.taken_by_router):
            if self.now - held.sent_at["yield"] > self.timeouts.retry_s:
                self._send_yield(held)

    def _resume(self, held: Relaying) -> None:
        self.enter(held, Phase.RELAYING)
        self.emit(Speak(held.key, None))

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
        (Phase.RELAYING, Wrote): "wrote",
        (Phase.PAUSED, Wrote): "late",  # the engine pauses by itself: nothing is written here
        (Phase.YIELDED, Wrote): "late",  # the step that ran while we yielded; MD writes this index
        (Phase.FINISHED, Wrote): "late",
        **{(phase, MainReady): "main_ready" for phase in (Phase.OPENING, Phase.FILLING, Phase.RELAYING, Phase.PAUSED)},
        (Phase.YIELDED, MainReady): "main_still_ready",
        (Phase.FINISHED, MainReady): "late",  # after the end it never yields
        (Phase.YIELDED, Taken): "taken",
        **{(phase, Cut): "cut" for phase in Phase if phase is not Phase.YIELDED},
        (Phase.YIELDED, Cut): "cut_too_late",
        **{(phase, Computed): "late_computed" for phase in Phase},
        # A yield before the prompt was whole leaves the link and the engine with results to report.
        **{
            (phase, event): "late"
            for phase in (Phase.RELAYING, Phase.PAUSED, Phase.YIELDED, Phase.FINISHED)
            for event in (KvExpected, KvRefused, KvLanded, KvDamaged, KvClosed, KvImported, KvImportFailed)
        },
        (Phase.YIELDED, SequenceOpened): "late",
        (Phase.YIELDED, SequenceRefused): "late",
    }
