"""What P, RLD and MD have in common: the machine and its rows, beats, asked-again outputs, the cache's change events.

A role adds its phases and its `ROWS`: (phase, event type) -> method name. A row that is missing for a peer's message drops and
counts it; for the worker's own engine or link it raises IllegalEvent and changes nothing. Late results for requests that are
gone are dropped: closing is always answered by silence.

What it holds for routers, and how long, is keeping.py's.
"""

from collections.abc import Callable
from enum import Enum
from hashlib import blake2b
from typing import Any, ClassVar

from ..blocks import pack
from ..effects import Broadcast, Effect, Gauge, Send, Span
from ..errors import IllegalEvent
from ..events import (
    DrainWanted,
    Event,
    Heard,
    KvAcked,
    KvCloseAcked,
    KvClosed,
    KvDamaged,
    KvExpected,
    KvImported,
    KvImportFailed,
    KvLanded,
    KvRefused,
    LineMeasured,
    LineWanted,
    SequenceOpened,
    SequenceRefused,
    StepDone,
    TimerFired,
    TransferFailed,
)
from ..ids import BlockHash, Peer, TransferId
from ..messages import (
    Ask,
    Assignment,
    Beat,
    BlocksChanged,
    HeldRequest,
    LineLease,
    LineState,
    Release,
    Renew,
    Snapshot,
    SnapshotWanted,
    Tokens,
    WorkerCard,
    Written,
)
from ..timeouts import TimeOuts
from .held import Computed, Held, Wrote
from .keeping import H, Keeper
from .lessee import Lessee


class Worker(Keeper[H]):
    """Base of the three engine roles."""

    OPENING: ClassVar[Enum]
    ROWS: ClassVar[dict[tuple[Enum, type], str]]
    COMMAND: ClassVar[type[Assignment]]

    def __init__(self, me: Peer, card: WorkerCard, timeouts: TimeOuts, secret_seed: bytes) -> None:
        super().__init__(me, card, timeouts)
        self._secret_seed = secret_seed
        self.by_transfer: dict[TransferId, H] = {}
        self.blocks: dict[BlockHash, None] = {}
        self.lines: dict[str, LineState] = {}
        self.lessee = Lessee()
        self._changes = 0
        self._next_beat = 0.0
        self._next_tick = 0.0
        self._frames: dict[Peer, list[Written]] = {}

    # -- the machine --------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        return self._next_tick

    @property
    def idle(self) -> bool:
        return not self.held

    def start(self, now: float) -> list[Effect]:
        return self.handle(TimerFired(), now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Time first: who was stopped for longer than a lease finds it run out before it acts on what came meanwhile."""
        self.now, self._effects, self._frames = now, [], {}
        if now >= self._next_tick:
            self._next_tick = now + self.timeouts.tick_s
            self._tick()
        self._dispatch(event)
        for peer, written in self._frames.items():
            self.emit(Send(peer, Tokens(tuple(written))))
        return self._effects

    def _dispatch(self, event: Event) -> None:
        match event:
            case TimerFired():
                pass
            case Heard():
                self._hear(event)
            case StepDone():
                self._step_done(event)
            case SequenceOpened() | SequenceRefused() | KvImported() | KvImportFailed():
                held = self.held.get(event.key.request)
                self._own(held if held and held.key == event.key else None, event)
            case (
                KvExpected() | KvRefused() | KvLanded() | KvDamaged() | KvClosed()
                | KvAcked() | KvCloseAcked() | TransferFailed()
            ):  # fmt: skip
                self._own(self.by_transfer.get(event.transfer), event)
            case LineMeasured(line):
                self.lines[line.site] = line
            case LineWanted():
                routers = dict.fromkeys(held.router for held in self.held.values())
                self._effects += self.lessee.wanted(event, routers)
            case DrainWanted():
                self.draining = True
            case _:
                raise IllegalEvent(f"{type(event).__name__} at {self.me}")

    # -- what a role has to work with ---------------------------------------------------------------------------------

    def speak(self, to: Peer | None, written: Written) -> None:
        """Outputs leave in one frame per destination and event, so per engine step."""
        if to:
            self._frames.setdefault(to, []).append(written)

    def every(self, held: Held, what: str, period_s: float) -> bool:
        """True at most once each `period_s`, the first time at once."""
        last = held.sent_at.get(what)
        if last is not None and self.now - last < period_s:
            return False
        held.sent_at[what] = self.now
        return True

    def enter(self, held: Held, phase: Enum) -> None:
        held.phase, held.phase_at = phase, self.now

    def span(
        self, held: Held, name: str, start: float, *, stop: float | None = None, **attributes: str | int | float
    ) -> None:
        """A finished stretch of this request, from `start` to `stop`, or now. Attributes get the prefix `pdd.`."""
        named = {f"pdd.{key}": value for key, value in attributes.items()}
        named |= {"pdd.request": held.request, "pdd.epoch": held.epoch}
        stop = self.now if stop is None else stop
        self.emit(Span(name, held.command.traceparent, start, stop, tuple(named.items())))

    def secret_for(self, transfer: TransferId) -> bytes:
        return blake2b(transfer.encode(), key=self._secret_seed, digest_size=16).digest()

    def work(self, held: H) -> None:
        """Called each tick: repeats and waits."""

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _row(self, held: H, kind: type) -> str | None:
        return self.ROWS.get((held.phase, kind))

    def _own(self, held: H | None, event: Event) -> None:
        if held is None:
            return  # its request was released while the engine or the link was at it
        name = self._row(held, type(event))
        if name is None:
            raise IllegalEvent(f"{type(event).__name__} in {held.phase.name} at {self.me}")
        action: Callable[[H, Event], None] = getattr(self, name)
        action(held, event)

    def _peer(self, sender: Peer, message: Any) -> None:
        held = self.held.get(message.request)
        if held is None or held.epoch != message.epoch:
            return self.drop("epoch")
        name = self._row(held, type(message))
        if name is None:
            return self.drop("unfit")
        action: Callable[[H, Peer, Any], None] = getattr(self, name)
        action(held, sender, message)

    def late(self, held: H, *event: object) -> None:
        """A row for what lost its race: nothing to do."""

    # -- messages every role answers ----------------------------------------------------------------------------------

    def _hear(self, heard: Heard) -> None:
        message = heard.message
        if heard.to != self.me:
            return self.drop("incarnation")
        match message:
            case Assignment() if isinstance(message, self.COMMAND):
                self._assign(heard.sender, message)
            case Release():
                self._release(heard.sender, message)
            case Renew(epochs):
                self._renew(heard.sender, epochs)
            case Ask():
                self._ask(heard.sender, message)
            case LineLease():
                self._effects += self.lessee.leased(heard.sender, message, self.now)
            case SnapshotWanted():
                self.emit(Send(heard.sender, Snapshot(self._changes, pack(list(self.blocks)))))
            case Tokens(written):
                for part in written:
                    self._peer(heard.sender, part)
            case _ if hasattr(message, "request"):
                self._peer(heard.sender, message)
            case _:
                self.drop("unfit")

    def _ask(self, sender: Peer, message: Ask) -> None:
        held = self.held.get(message.request)
        if held is None or held.epoch != message.epoch:
            return self.drop("epoch")
        own = len(held.out) if held.own_start is None else held.own_start
        start = max(message.start, held.base)
        for begin, end, mine in ((start, min(own, len(held.out)), False), (max(start, own), len(held.out), True)):
            if begin < end:
                self.emit(Send(sender, Tokens((held.outputs(begin, end),), own=mine)))

    # -- steps and time -----------------------------------------------------------------------------------------------

    def _step_done(self, step: StepDone) -> None:
        self.load = step.load
        if step.stored or step.removed:
            self._blocks_changed(step)
        for key, upto in step.computed:
            held = self.held.get(key.request)
            if held and held.key == key:
                held.computed, held.progress = upto, held.progress + 1
                self._own(held, Computed(upto, step.started_at))
        for written in step.written:
            held = self.held.get(written.request)
            if held and held.epoch == written.epoch:
                held.progress += 1
                self._own(held, Wrote(written))

    def _blocks_changed(self, step: StepDone) -> None:
        for block in step.removed:
            self.blocks.pop(block, None)
        for block in step.stored:
            self.blocks[block] = None
        self._changes += 1
        self.emit(Broadcast(BlocksChanged(self._changes, pack(step.stored), pack(step.removed))))

    def _tick(self) -> None:
        for held in list(self.held.values()):
            if self.now - held.renewed_at > self.timeouts.lease_s:
                self._lease_ended(held)
            else:
                self.work(held)
        for request in [r for r, (_, until) in self.tombstones.items() if self.now > until]:
            del self.tombstones[request]
        if self.now >= self._next_beat:
            self._next_beat = self.now + self.timeouts.beat_s
            self._beat()

    def _beat(self) -> None:
        self._beats += 1
        held = tuple(
            HeldRequest(h.request, h.epoch, h.router, h.phase.name.lower(), h.whole, len(h.out), h.fence, h.progress)
            for h in self.held.values()
        )
        self.emit(Broadcast(Beat(self._beats, self.card, held, self.load, tuple(self.lines.values()), self.draining)))
        self.emit(Gauge("pdd_held_requests", len(held)))
        self.emit(Gauge("pdd_pages_free", self.load.free_pages))
        self.emit(Gauge("pdd_pages_total", self.load.total_pages))
