"""An engine of a simulated fleet: the product's `Batch` (scheduler, pages, prefix cache) at a chip's cost; no KV, no logits.

An output's id is a constant, but for the last one of an answer, whose place `Lengths` knows: the model's choice, which nobody else
can see. As in adapters/engine_steps one piece of work is under way at a time.

Where a step has nothing but decodes that have spoken before, up to `stride` of them are one event. Whatever comes in meanwhile ends the
stride with the step that is under way then, so every sequence joins, leaves and ends at the same step as without strides; what was
written is told up to a stride late.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

from ..core.cost import EngineCost
from ..core.effects import AppendIds, CloseSequence, Hush, OpenSequence, Speak
from ..core.events import KvImported, KvImportFailed
from ..core.ids import Key, RequestId
from ..core.member import Import
from ..core.steps import Sampled, Slice, StepPlan, StepResult
from ..ports import Sink
from .striding import StridingBatch
from .world import World

WORD = 7  # every output but the last
END = 2  # the last


class Lengths:
    """How many outputs the model writes for each request, END included."""

    def __init__(self) -> None:
        self._outputs: dict[RequestId, int] = {}

    def set(self, request: RequestId, outputs: int) -> None:
        self._outputs[request] = outputs

    def forget(self, request: RequestId) -> None:
        self._outputs.pop(request, None)

    def token(self, request: RequestId, index: int) -> int:
        return END if index + 1 >= self._outputs.get(request, 1) else WORD

    def left(self, request: RequestId, index: int) -> int:
        """Outputs from `index` on."""
        return self._outputs.get(request, 1) - index


_SAMPLED = {WORD: Sampled(WORD), END: Sampled(END)}


@dataclass(slots=True)
class _Stride:
    """Steps in a row: the n-th ends at `ends[n]`. `steps` may shrink while it runs."""

    plan: StepPlan
    began: float
    ends: list[float]
    steps: int


class SimEngine:
    """`kv_bytes` an id, for the time an import takes. `grain`: tokens that an id of a prompt stands for."""

    def __init__(
        self,
        batch: StridingBatch,
        cost: EngineCost,
        world: World,
        sink: Sink,
        lengths: Lengths,
        kv_bytes: int,
        stride: int = 1,
        grain: int = 1,
    ) -> None:
        self.batch, self.cost = batch, cost
        self._grain = grain
        self._world, self._sink, self._lengths, self._kv_bytes = world, sink, lengths, kv_bytes
        self._stride_most = stride
        self._stride: _Stride | None = None
        self._spoken: dict[Key, None] = {}
        self._done: dict[Import, Callable[[], None]] = {}
        self._woken = False
        self.alive = True
        self.busy_s = 0.0
        self.steps = 0
        self.first_step_s: float | None = None  # when its first step began

    # -- the port -----------------------------------------------------------------------------------------------------

    def open(self, effect: OpenSequence) -> None:
        self._sink(self.batch.open(effect))

    def append_ids(self, effect: AppendIds) -> None:
        self.batch.append_ids(effect)
        self._wake()

    def speak(self, effect: Speak) -> None:
        self.batch.speak(effect)
        self._wake()

    def hush(self, effect: Hush) -> None:
        self.batch.hush(effect.key)
        self._cut_short()

    def close(self, effect: CloseSequence) -> None:
        self._spoken.pop(effect.key, None)
        for staged in self.batch.close(effect.key):
            self._end_import(staged, "the sequence is closed")
        self._wake()

    def import_kv(self, key: Key, start: int, stop: int, done: Callable[[], None]) -> None:
        staged = self.batch.begin_import(key, start, stop)
        if isinstance(staged, str):
            done()
            self._sink(KvImportFailed(key, staged))
        else:
            self._done[staged] = done
            self._wake()

    def holds(self, key: Key, stop: int) -> bool:
        """Could ids before `stop` be sent now?"""
        try:
            return self.batch.sequence(key).computed >= stop
        except KeyError:
            return False

    def preload(self, ids: tuple[int, ...]) -> None:
        """Put whole pages of a prompt into the cache, as if it had been served."""
        pool = self.batch.pool
        lease = pool.match(ids, "", len(ids))
        missing = pool.pages_for(len(ids)) - len(lease.pages)
        if pool.allocate(lease, missing):
            pool.adopt(lease, ids, len(ids))
        pool.give_back(lease, ids, len(ids))
        self._flush()

    # -- work ---------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._stride:
            self._cut_short()
        elif not self._woken and not self.batch.under_way:
            self._woken = True
            self._world.call_later(0.0, self._begin)

    def _begin(self) -> None:
        self._woken = False
        if self.batch.under_way or not self.alive:
            return
        work = self.batch.next_work()
        while isinstance(work, Import) and not self._write(work):
            work = self.batch.next_work()
        if isinstance(work, StepPlan):
            self._run(work)
        elif work is None:
            self._flush()

    def _run(self, plan: StepPlan) -> None:
        if self.first_step_s is None:
            self.first_step_s = self._world.now()
        steps = self._steps_alike(plan) if self._stride_most > 1 else 1
        if steps > 1 and self.batch.reserve(steps):
            return self._run_stride(plan, steps)
        seconds = self.cost.seconds(plan) if self._grain == 1 else self._seconds(plan)
        self._world.call_later(seconds, lambda: self._stepped(plan, seconds))

    def _seconds(self, plan: StepPlan) -> float:
        """As `EngineCost.seconds`, where an id of a prompt stands for `grain` tokens."""
        prefilled = decodes = read = 0
        pairs = 0.0
        for piece in plan.slices:
            start, stop = self._tokens(piece, piece.start), self._tokens(piece, piece.stop)
            if piece.stop - piece.start == 1 and piece.sample:
                decodes += 1
                read += stop
            else:
                prefilled += stop - start
                pairs += (stop - start) * (start + stop + 1) / 2
        return self.cost.seconds_of(prefilled, pairs, decodes, read)

    def _tokens(self, piece: Slice, position: int) -> int:
        """Tokens before a position."""
        prompt = min(position, piece.sequence.prompt_len)
        return prompt * self._grain + position - prompt

    def _steps_alike(self, plan: StepPlan) -> int:
        """How many steps in a row will have just these decodes, if nothing comes in."""
        steps, spoken, left = self._stride_most, self._spoken, self._lengths.left
        for piece in plan.slices:
            sequence = piece.sequence
            if not piece.sample or piece.stop - piece.start != 1 or sequence.key not in spoken:
                return 1
            index = piece.stop - sequence.prompt_len
            limit = min(sequence.sampling.max_tokens, sequence.speak_stop or 1 << 62) - index
            steps = min(steps, left(sequence.key.request, index), limit, self.batch.limits.max_context - piece.stop)
            if steps <= 1:
                return 1
        return steps

    def _run_stride(self, plan: StepPlan, steps: int) -> None:
        decodes = len(plan.slices)
        read = sum([self._tokens(piece, piece.stop) for piece in plan.slices])
        end, ends = self._world.now(), []
        for _ in range(steps):
            end += self.cost.seconds_of(0, 0.0, decodes, read)
            read += decodes
            ends.append(end)
        stride = self._stride = _Stride(plan, self._world.now(), ends, steps)
        self._end_later(stride)

    def _end_later(self, stride: _Stride) -> None:
        steps = stride.steps
        self._world.call_later(
            max(0.0, stride.ends[steps - 1] - self._world.now()), lambda: self._stride_ended(stride, steps)
        )

    def _cut_short(self) -> None:
        """The step under way is the last of this stride."""
        stride, now = self._stride, self._world.now()
        if stride is None:
            return
        steps = min(bisect_left(stride.ends, now) + 1, stride.steps)
        if steps < stride.steps:
            stride.steps = steps
            self._end_later(stride)

    def _stride_ended(self, stride: _Stride, steps: int) -> None:
        if not self.alive or self._stride is not stride or stride.steps != steps:
            return  # it was cut short since
        self._stride = None
        seconds = stride.ends[steps - 1] - stride.began
        self.busy_s += seconds
        self.steps += steps
        tokens = [self._words(piece, steps) for piece in stride.plan.slices]
        self._sink(self.batch.finish_stride(stride.plan, tokens, seconds, self._world.now()))
        self._begin()

    def _words(self, piece: Slice, steps: int) -> tuple[int, ...]:
        sequence = piece.sequence
        last = self._lengths.token(sequence.key.request, piece.stop - sequence.prompt_len + steps - 1)
        return (WORD,) * (steps - 1) + (last,)

    def _stepped(self, plan: StepPlan, seconds: float) -> None:
        if not self.alive:
            return
        self.busy_s += seconds
        self.steps += 1
        sampled = tuple([self._sample(piece) for piece in plan.slices if piece.sample])
        self._sink(self.batch.finish_step(plan, StepResult(sampled, seconds), self._world.now()))
        self._begin()

    def _sample(self, piece: Slice) -> Sampled:
        sequence = piece.sequence
        self._spoken[sequence.key] = None
        return _SAMPLED[self._lengths.token(sequence.key.request, piece.stop - sequence.prompt_len)]

    def _write(self, staged: Import) -> bool:
        """False: it failed before it began."""
        if staged.failure:
            self.batch.finish_import(staged, written=False)
            self._end_import(staged, staged.failure)
            return False
        seconds = (staged.stop - staged.start) * self._kv_bytes / self.cost.import_bytes_per_s
        self._world.call_later(seconds, lambda: self._written(staged))
        return True

    def _written(self, staged: Import) -> None:
        if not self.alive:
            return
        kept = self.batch.finish_import(staged, written=True)
        self._end_import(staged, "" if kept else "the sequence is closed")
        self._flush()
        self._begin()

    def _end_import(self, staged: Import, failure: str) -> None:
        key = staged.member.sequence.key
        self._done.pop(staged)()
        self._sink(KvImportFailed(key, failure) if failure else KvImported(key))

    def _flush(self) -> None:
        changed = self.batch.flush(self._world.now())
        if changed is not None:
            self._sink(changed)
