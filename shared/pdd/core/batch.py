"""Everything an engine decides, without computing: which sequences are open, whose pages are whose, what the next step is.

Mirrors the Engine port: calls come in any order between steps and during one. One piece of work is under way at a time: `next_work`
gives it out, `finish_step` or `finish_import` ends it. A sequence that closes meanwhile gives its pages back only then.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .cost import Pace
from .effects import AppendIds, OpenSequence, Speak
from .errors import IllegalEvent
from .events import SequenceOpened, SequenceRefused, StepDone
from .ids import BlockHash, Key
from .member import Import, Member
from .messages import EngineLoad, Written
from .pool import Pool
from .sampling import Finish
from .schedule import Due, compose, undisturbed
from .seating import Seating
from .steps import Sampled, Sequence, StepPlan, StepResult

SHORT_STEPS = 4  # in a row, for hand-overs alone


@dataclass(frozen=True, slots=True)
class Limits:
    """What one engine can hold."""

    pages: int
    page_size: int  # tokens; divides the hash block
    max_sequences: int
    max_context: int  # tokens with KV of one sequence
    chunk_tokens: int = 256  # prefill and extend of one step

    @property
    def context(self) -> int:
        """Tokens of the longest sequence: all pages together may hold less than the model allows."""
        return min(self.max_context, self.pages * self.page_size)


Composer = Callable[[Iterable[Due], int], StepPlan]


class Batch:
    """`composer`: what a step is made of; schedule.compose, unless another is to be compared with it."""

    def __init__(self, limits: Limits, fingerprint: str, composer: Composer = compose) -> None:
        self._compose = composer
        self.limits = limits
        self.fingerprint = fingerprint
        self.pool = Pool(limits.pages, limits.page_size, fingerprint)
        self._context = limits.context
        self._members: dict[Key, Member] = {}  # open ones, by number
        self._arrivals = 0
        self._seating = Seating(self.pool, limits.chunk_tokens)
        self._running: tuple[Member, ...] = ()  # in the order of the plan's slices
        self._under_way: StepPlan | Import | None = None
        self._imported_last = False
        self._short_steps = 0  # in a row
        self._pace = Pace()
        self._endings: dict[Key, Written] = {}  # of those that had nothing left to write
        self._told = self.load()

    # -- sequences ----------------------------------------------------------------------------------------------------

    def open(self, effect: OpenSequence) -> SequenceOpened | SequenceRefused:
        known = self._members.get(effect.key)
        if known is not None:
            return SequenceOpened(effect.key, known.have)
        reason = self._cannot_open(effect)
        if reason:
            return SequenceRefused(effect.key, reason)
        ids = list(effect.ids)
        lease = self.pool.match(ids, effect.cache_salt, len(ids) - effect.compute_last)
        sequence = Sequence(effect.key, ids, effect.prompt_len, effect.sampling, effect.cache_salt)
        self._arrivals += 1
        member = Member(sequence, self._arrivals, len(ids), effect.compute_last, self._context, lease)
        member.take(lease)
        member.have = member.announced = sequence.computed
        member.ready = member.seated = not effect.compute_last and sequence.computed == len(ids)
        self._members[effect.key] = member
        return SequenceOpened(effect.key, member.have)

    def _cannot_open(self, effect: OpenSequence) -> str:
        if not effect.ids or not 0 <= effect.prompt_len <= len(effect.ids):
            return f"{len(effect.ids)} ids with a prompt of {effect.prompt_len}"
        if len(effect.ids) > self.limits.max_context:
            return f"{len(effect.ids)} ids, the context ends at {self.limits.max_context}"
        if len(effect.ids) > self._context:
            return f"{len(effect.ids)} ids, all pages together hold {self._context}"
        if len(self._members) >= self.limits.max_sequences:
            return f"{self.limits.max_sequences} sequences are open"
        return ""

    def append_ids(self, effect: AppendIds) -> None:
        """IllegalEvent if ids in between are missing. Who is unknown was refused or closed, and who has ended learns nothing."""
        member = self._members.get(effect.key)
        if member is None or member.ended:
            return
        skip = member.sequence.outputs - effect.start
        if skip < 0:
            raise IllegalEvent(f"outputs from {effect.start} after {member.sequence.outputs} of {effect.key}")
        member.sequence.ids.extend(effect.ids[skip:])
        self._end_if_full(member)

    def speak(self, effect: Speak) -> None:
        member = self._members.get(effect.key)
        if member is None:
            return
        member.sequence.speaking, member.sequence.speak_stop = True, effect.stop
        self._end_if_full(member)
        if member.compute_last and not member.ready:
            member.ready = True
            self._seating.wait(member)

    def _end_if_full(self, member: Member) -> None:
        if member.full and member.wants_token:
            member.ended, key = True, member.sequence.key
            nothing = Written(key.request, key.epoch, member.sequence.outputs, (), finish=Finish("length"))
            self._endings[key] = nothing

    def hush(self, key: Key) -> None:
        member = self._members.get(key)
        if member is not None:
            member.sequence.speaking = False

    def close(self, key: Key) -> list[Import]:
        """Returns its imports that nobody has begun to write; one under way ends by `finish_import`."""
        member = self._members.pop(key, None)
        if member is None:
            return []
        member.closed = True
        self._endings.pop(key, None)
        left = self._seating.leave(member)
        if not member.busy:
            self._seating.drop(member)
        return left

    def sequence(self, key: Key) -> Sequence:
        """KeyError if closed. Safe from any thread; `pages` is replaced, never shortened, when pages are given back."""
        return self._members[key].sequence

    # -- imports ------------------------------------------------------------------------------------------------------

    def begin_import(self, key: Key, start: int, stop: int) -> Import | str:
        """Queued until there are pages, first come first served; or why it cannot be."""
        member = self._members.get(key)
        if member is None:
            return "the sequence is closed"
        if member.compute_last or member.ready:
            return "the sequence needs no KV"
        if not 0 <= start < stop <= member.base:
            return f"KV of tokens [{start}, {stop}), the sequence has {member.base}"
        staged = Import(member, start, stop)
        self._seating.wait_import(staged)
        return staged

    def finish_import(self, staged: Import, *, written: bool) -> bool:
        """False: it came to nothing. What is written after a close may be anything, and is never cached."""
        member = staged.member
        self._under_way, member.busy = None, False
        if member.closed:
            self._seating.drop(member)
            return False
        if not written or staged.failure:
            return False
        self._computed(member, staged.stop)
        member.announced = max(member.announced, staged.stop)
        member.ready = staged.stop >= member.base
        return True

    # -- steps --------------------------------------------------------------------------------------------------------

    def next_work(self) -> StepPlan | Import | None:
        """What to compute or write now; steps and imports take turns. An Import with a `failure` is to be ended, not written."""
        if self._under_way is not None:
            raise IllegalEvent("one piece of work at a time")
        members = list(self._members.values())
        while True:
            self._seating.seat(members)
            going = self._seating.grow(members)
            staged = None if going and self._imported_last else self._seating.next_import()
            if going or staged or not self._seating.give_way(members):
                break
        self._imported_last = staged is not None
        if staged is not None:
            staged.member.busy = True
            self._under_way = staged
        elif going:
            self._under_way = self._start_step(going)
        return self._under_way

    def _start_step(self, going: list[Member]) -> StepPlan:
        plan = self._compose(self._let_pass([member.due for member in going]), self.limits.chunk_tokens)
        self._running = tuple(self._members[piece.sequence.key] for piece in plan.slices)
        for member in self._running:
            member.busy = True
        return plan

    def _let_pass(self, due: list[Due]) -> list[Due]:
        """A hand-over has the step for itself; where they come one upon another, every few steps nobody is kept out."""
        if self._short_steps < SHORT_STEPS and any(one.at_handover for one in due):
            self._short_steps += 1
            return undisturbed(due)
        self._short_steps = 0
        return due

    def finish_step(self, plan: StepPlan, result: StepResult, now: float) -> StepDone:
        """Everything the step brought, but nothing of those that closed during it."""
        if self._under_way is not plan:
            raise IllegalEvent("this step is not under way")
        computed, written = [], []
        drawn = iter(result.sampled)
        for member, piece in zip(self._running, plan.slices, strict=True):
            sampled = next(drawn) if piece.sample else None
            member.busy = False
            if member.closed:
                self._seating.drop(member)
                continue
            self._computed(member, piece.stop)
            if piece.stop > member.announced:
                member.announced = piece.stop
                computed.append((member.sequence.key, piece.stop))
            # Its index may have come from elsewhere meanwhile: then that one counts.
            if sampled is not None and len(member.sequence.ids) == piece.stop:
                written.append(self._write(member, sampled))
        self._under_way, self._running = None, ()
        self._pace.observe(plan, result)
        return self._report(now - result.seconds, tuple(computed), tuple(written))

    def _computed(self, member: Member, stop: int) -> None:
        member.sequence.computed = stop
        assert member.lease is not None
        self.pool.adopt(member.lease, member.sequence.ids, stop)

    def _write(self, member: Member, sampled: Sampled) -> Written:
        sequence = member.sequence
        start = sequence.outputs
        sequence.ids.append(sampled.token)
        finish = member.ending(sampled.token)
        member.ended = finish is not None
        logprobs = () if sampled.logprobs is None else (sampled.logprobs,)
        return Written(sequence.key.request, sequence.key.epoch, start, (sampled.token,), logprobs, finish)

    # -- what others may know -----------------------------------------------------------------------------------------

    def flush(self, now: float) -> StepDone | None:
        """What changed outside a step, if anything did."""
        changed = self._endings or self.pool.changed or self.load() != self._told
        return self._report(now, (), ()) if changed else None

    def _report(
        self, started_at: float, computed: tuple[tuple[Key, int], ...], written: tuple[Written, ...]
    ) -> StepDone:
        written += tuple(self._endings.values())
        self._endings.clear()
        stored, removed = self.pool.take_changes()
        self._told = self.load()
        return StepDone(computed, written, stored, removed, self._told, started_at)

    def load(self) -> EngineLoad:
        members = self._members.values()
        return EngineLoad(
            running=sum(member.work > 0 for member in members),
            waiting_tokens=sum(member.work for member in members if not member.due.decodes),
            free_pages=self.pool.available,
            total_pages=self.pool.total,
            prefill_tokens_per_s=self._pace.prefill_tokens_per_s,
            step_s=self._pace.step_s,
        )

    def snapshot(self) -> tuple[BlockHash, ...]:
        return self.pool.snapshot()

    @property
    def under_way(self) -> bool:
        return self._under_way is not None
