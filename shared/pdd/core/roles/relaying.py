"""The relay's half of a speaker: decode eagerly, tell router and MD alike, yield at a fence. The hand-over is decided in `_consider`.

After a Yield it never speaks an index at or after the fence, and keeps KV and ids until the router's Release. RLD has this half
behind a receiving one; P has it behind prefill, where it hosts the relay itself.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar, TypeVar

from ..effects import Count, Hush, Speak
from ..ids import Peer
from ..messages import Cut, CutAnswer, MainReady, Taken, Yield
from ..policies import POLICIES, Progress
from .held import Computed, Held, Wrote
from .worker import Worker

CROWDED = 0.5  # of the places in use: a relay's bound then holds
LEAST = 1 / 8


class Pen(Enum):
    """Phases of a relay that has the prompt."""

    RELAYING = auto()
    PAUSED = auto()  # at its bound: the KV is kept, the batch slot is not
    YIELDED = auto()
    FINISHED = auto()  # wrote the last token: never yields


@dataclass(slots=True)
class RelayState:
    main_known: int | None = None  # MD's report, once it is ready
    first_report: tuple[int, float] = (0, 0.0)  # what it said, and when
    reports: int = 0
    extend_tokens_per_s: float = 0.0  # of MD, since then
    backlog: int = 1 << 30  # the least at any of MD's reports
    fruitless: int = 0  # reports since
    last: int | None = None  # outputs in all, behind which to yield: the token under way is still RLD's
    last_at: float = 0.0
    no_main: bool = False  # promised by a cut, or nobody in the cast
    granted: int = 0  # outputs that it may write beyond `base`, by its bound
    bound_lifted: bool = False
    taken_by_main: bool = False
    taken_by_router: bool = False
    relaying_since: float = 0.0

    def report(self, known: int, now: float) -> None:
        """MD has extended over outputs before `known`."""
        if self.main_known is None:
            self.first_report = known, now
        self.main_known = max(self.main_known or 0, known)
        first, since = self.first_report
        if now > since:
            self.extend_tokens_per_s = max(0, self.main_known - first) / (now - since)
        self.reports += 1


@dataclass(slots=True)
class RelayHeld(Held):
    """A request at a worker that may speak before MD does. (MD keeps one too, and leaves `relay` alone.)"""

    relay: RelayState = field(default_factory=RelayState)


R = TypeVar("R", bound=RelayHeld)


class Relay(Worker[R]):
    """A role calls `begin_relay` when prompt and token 0 are here, and `work_relay` from `work`."""

    def bound(self, held: R) -> int | None:
        """Output index before which to pause; None: no bound."""
        relay, command = held.relay, held.command
        if relay.last is not None:
            return relay.last
        if relay.no_main or relay.bound_lifted:
            return None
        if command.handover_after > held.base:
            return command.handover_after
        if not command.relay_bound:
            return None
        return held.base + relay.granted

    def _grant(self, held: R) -> None:
        """The fuller RLD, the fewer: all of `relay_bound` where nobody else is, LEAST of it where no place is left."""
        share = max(LEAST, 1 - self.fullness)
        held.relay.granted += max(1, int(held.command.relay_bound * share))

    def begin_relay(self, held: R) -> None:
        held.relay.relaying_since = self.now
        self._grant(held)
        bound = self.bound(held)
        if bound is not None and len(held.out) >= bound:
            self.enter(held, Pen.PAUSED)
        else:
            self.enter(held, Pen.RELAYING)
            self.emit(Speak(held.key, bound))
        self._consider(held)

    def relay_wrote(self, held: R, event: Wrote) -> None:
        held.learn(event.written)
        self.speak(held.router, event.written)
        if not held.relay.no_main:
            self.speak(held.command.cast.main, event.written)
        self.emit(Count("pdd_tokens_written_total", (("role", "relay_decode"),), len(event.written.ids)))
        bound = self.bound(held)
        if held.finish:
            self.enter(held, Pen.FINISHED)
            self._relayed(held, "finish")
        elif held.relay.last is not None:
            self._yield(held)
        elif bound is not None and len(held.out) >= bound:
            self._at_bound(held)
        if held.phase is Pen.PAUSED or not held.whole or self._forced(held):
            self._consider(held)

    def _at_bound(self, held: R) -> None:
        """With room to spare it is granted more; under load it gives its place up and waits for MD."""
        if self._forced(held) or self.fullness >= CROWDED:
            self.emit(Count("pdd_relay_paused_total"))
            return self.enter(held, Pen.PAUSED)
        self._grant(held)
        self.emit(Speak(held.key, self.bound(held)))

    @property
    def fullness(self) -> float:
        """Who has just come to its bound is not running: all that came there in one step would find the place empty."""
        relaying = sum(held.phase is Pen.RELAYING for held in self.held.values())
        return max(self.load.running, relaying) / max(1, self.card.max_sequences)

    def _forced(self, held: R) -> bool:
        return held.command.handover_after > held.base and not held.relay.bound_lifted

    # -- the hand-over ------------------------------------------------------------------------------------------------

    def _consider(self, held: R) -> None:
        """MD is ready, a hand-over is allowed, and the policy says so; or a forced fence, or the bound."""
        relay = held.relay
        if relay.main_known is None or relay.no_main or held.phase in (Pen.YIELDED, Pen.FINISHED):
            return
        if self._forced(held):
            due = max(len(held.out), held.base + 1) >= held.command.handover_after
        else:
            due = held.phase is Pen.PAUSED or not held.whole or self._wanted(held, relay.main_known)
        if due and held.phase is Pen.RELAYING and held.whole:
            self._yield_behind(held)
        elif due:
            self._yield(held)

    def _wanted(self, held: R, main_known: int) -> bool:
        """Does the policy, asked once at each report of MD, want the hand-over now?"""
        relay = held.relay
        backlog = max(0, len(held.out) - main_known)
        relay.fruitless = 0 if backlog < relay.backlog else relay.fruitless + 1
        relay.backlog = min(relay.backlog, backlog)
        progress = Progress(
            len(held.out),
            main_known,
            relay.reports,
            relay.fruitless,
            self.fullness,
            self.load.step_s,
            relay.extend_tokens_per_s,
            held.command.rtt_s,
        )
        return POLICIES[held.command.policy].due(progress)

    def _yield_behind(self, held: R) -> None:
        """Speak the token under way, so that the client does not wait for it twice, and yield then; `work_relay` bounds that."""
        if held.relay.last is None:
            held.relay.last, held.relay.last_at = len(held.out) + 1, self.now
            self.emit(Speak(held.key, held.relay.last))

    def _yield(self, held: R) -> None:
        """Before the prompt is whole here, the fence stands right after token 0, which MD has from its own closing frame."""
        held.fence, held.relay.last = max(len(held.out), held.base + 1), None
        self.emit(Hush(held.key))
        self.emit(Count("pdd_handovers_total", (("kind", held.command.policy),)))
        self._relayed(held, "yield")
        self.enter(held, Pen.YIELDED)
        self._send_yield(held)

    def _relayed(self, held: R, why: str) -> None:
        start = held.relay.relaying_since or self.now
        self.span(held, "relay", start, tokens=len(held.out) - held.base, end=why)

    def _send_yield(self, held: R) -> None:
        assert held.fence is not None
        held.sent_at["yield"] = self.now
        message = Yield(held.request, held.epoch, held.fence, held.outputs(held.base, held.fence))
        if not held.relay.taken_by_main and held.command.cast.main:
            self.send(held, held.command.cast.main, message)
        if not held.relay.taken_by_router:
            self.send(held, held.router, message)

    def main_ready(self, held: R, sender: Peer, message: MainReady) -> None:
        if sender != held.command.cast.main:
            return self.drop("cast")
        held.relay.report(message.known, self.now)
        self._consider(held)

    def main_still_ready(self, held: R, sender: Peer, message: MainReady) -> None:
        """MD has not seen the Yield."""
        if sender != held.command.cast.main:
            return self.drop("cast")
        held.relay.taken_by_main = False
        self._send_yield(held)

    def taken(self, held: R, sender: Peer, message: Taken) -> None:
        held.relay.taken_by_main |= sender == held.command.cast.main
        held.relay.taken_by_router |= sender == held.router

    def cut(self, held: R, sender: Peer, message: Cut) -> None:
        """A promise never to yield, so nothing more has to cross."""
        held.relay.no_main = True
        if held.phase in (Pen.RELAYING, Pen.PAUSED):
            self._resume(held)  # past its bound, too
        self.send(held, sender, CutAnswer(held.request, held.epoch, promised=True))

    def cut_too_late(self, held: R, sender: Peer, message: Cut) -> None:
        self.send(held, sender, CutAnswer(held.request, held.epoch, promised=False))

    # -- time ---------------------------------------------------------------------------------------------------------

    def work_relay(self, held: R) -> None:
        relay = held.relay
        if held.phase is Pen.PAUSED:
            patience = self.timeouts.handover_wait_s if self._forced(held) else self.timeouts.relay_wait_s
            if self.now - held.phase_at > patience:
                self.emit(Count("pdd_relay_bound_lifted_total"))
                relay.bound_lifted = True
                self._resume(held)
        elif held.phase is Pen.RELAYING and relay.last is not None:
            if self.now - relay.last_at > max(self.timeouts.tick_s, 2 * self.load.step_s):
                self._yield(held)
        elif held.phase is Pen.YIELDED and not (relay.taken_by_main and relay.taken_by_router):
            if self.now - held.sent_at["yield"] > self.timeouts.retry_s:
                self._send_yield(held)

    def _resume(self, held: R) -> None:
        held.relay.last = None
        self.enter(held, Pen.RELAYING)
        self.emit(Speak(held.key, None))

    RELAY_ROWS: ClassVar[dict[tuple[Enum, type[Any]], str]] = {
        (Pen.RELAYING, Wrote): "relay_wrote",
        (Pen.PAUSED, Wrote): "late",  # the engine pauses by itself: nothing is written here
        (Pen.YIELDED, Wrote): "late",  # the step that ran while we yielded; MD writes this index
        (Pen.FINISHED, Wrote): "late",
        (Pen.RELAYING, MainReady): "main_ready",
        (Pen.PAUSED, MainReady): "main_ready",
        (Pen.YIELDED, MainReady): "main_still_ready",
        (Pen.FINISHED, MainReady): "late",  # after the end it never yields
        (Pen.YIELDED, Taken): "taken",
        **{(phase, Cut): "cut" for phase in (Pen.RELAYING, Pen.PAUSED, Pen.FINISHED)},
        (Pen.YIELDED, Cut): "cut_too_late",
        **{(phase, Computed): "late" for phase in Pen},
    }
