"""The Engine port over a runner that computes single steps: `Batch` decides, the runner computes, results leave through the sink.

One piece of work is under way at a time; when it ends and there is more, the next begins at once. Every method is called on the
loop's thread, except `export_kv`, which any thread may call.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Protocol

from ..core import effects as fx
from ..core.batch import Batch, Limits
from ..core.errors import EngineError
from ..core.events import KvImported, KvImportFailed, SequenceRefused
from ..core.ids import BlockHash, Key
from ..core.member import Import
from ..core.messages import EngineLoad
from ..core.sampling import Sampling
from ..core.steps import StepPlan, StepResult
from ..ports import Clock, KvChunk, KvShape, Sink


class Runner(Protocol):
    """Computes and owns the memory of pages. `done` comes on the loop's thread, later than the call returns, and only once."""

    @property
    def kv_shape(self) -> KvShape: ...

    @property
    def features(self) -> tuple[str, ...]:
        """Of core/features.py."""

    def refuses(self, sampling: Sampling) -> str:
        """Why such outputs cannot be drawn here; empty if they can."""

    def run(self, plan: StepPlan, done: Callable[[StepResult], None]) -> None: ...

    def export(self, pages: list[int], page_size: int, start: int, stop: int) -> memoryview:
        """A copy of tokens [start, stop) in canonical layout. From any thread, also while a step runs."""

    def write(self, pages: list[int], page_size: int, chunks: list[KvChunk], done: Callable[[], None]) -> None:
        """EngineError at once, with nothing written and no `done`, where a chunk is not this model's KV."""


class SteppingEngine:
    def __init__(self, batch: Batch, runner: Runner, sink: Sink, clock: Clock) -> None:
        self._batch = batch
        self._runner = runner
        self._sink = sink
        self._clock = clock
        self._staged: dict[Import, tuple[list[KvChunk], Callable[[], None]]] = {}
        self._woken = False

    @property
    def kv_shape(self) -> KvShape:
        return self._runner.kv_shape

    @property
    def features(self) -> tuple[str, ...]:
        return self._runner.features

    @property
    def fingerprint(self) -> str:
        return self._batch.fingerprint

    @property
    def limits(self) -> Limits:
        return self._batch.limits

    @property
    def idle(self) -> bool:
        """Nothing is under way and nothing was asked since."""
        return not self._woken and not self._batch.under_way

    def load(self) -> EngineLoad:
        return self._batch.load()

    def snapshot(self) -> tuple[BlockHash, ...]:
        return self._batch.snapshot()

    # -- the port -----------------------------------------------------------------------------------------------------

    def open(self, effect: fx.OpenSequence) -> None:
        reason = self._runner.refuses(effect.sampling)
        self._sink(SequenceRefused(effect.key, reason) if reason else self._batch.open(effect))

    def append_ids(self, effect: fx.AppendIds) -> None:
        self._batch.append_ids(effect)
        self._wake()

    def speak(self, effect: fx.Speak) -> None:
        self._batch.speak(effect)
        self._wake()

    def hush(self, key: Key) -> None:
        self._batch.hush(key)

    def close(self, key: Key) -> None:
        for staged in self._batch.close(key):
            self._end_import(staged, "the sequence is closed")
        self._wake()

    def import_kv(self, key: Key, chunks: list[KvChunk], done: Callable[[], None]) -> None:
        gaps = any(left.stop != right.start for left, right in pairwise(chunks))
        staged = (
            "chunks without order"
            if gaps or not chunks
            else self._batch.begin_import(key, chunks[0].start, chunks[-1].stop)
        )
        if isinstance(staged, str):
            done()
            self._sink(KvImportFailed(key, staged))
        else:
            self._staged[staged] = chunks, done
            self._wake()

    def export_kv(self, key: Key, start: int, stop: int) -> KvChunk:
        """KeyError also if the pages were given back while they were copied, or wait to be computed again."""
        sequence = self._batch.sequence(key)
        pages = sequence.pages
        if stop > sequence.computed:
            raise KeyError(key)
        data = self._runner.export(pages, self._batch.limits.page_size, start, stop)
        # Pages are given back by replacing the list, before anyone may write them again: so what was copied is whole.
        if sequence.pages is not pages:
            raise KeyError(key)
        return KvChunk(start, stop, self.kv_shape, data)

    # -- work ---------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Begin soon rather than now, so that one step takes all that one event brings."""
        if not self._woken and not self._batch.under_way:
            self._woken = True
            self._clock.call_later(0.0, self._begin)

    def _begin(self) -> None:
        self._woken = False
        if self._batch.under_way:
            return
        work = self._batch.next_work()
        while isinstance(work, Import) and not self._write(work):
            work = self._batch.next_work()
        if isinstance(work, StepPlan):
            plan = work
            self._runner.run(plan, lambda result: self._stepped(plan, result))
        if work is None:
            self._flush()

    def _stepped(self, plan: StepPlan, result: StepResult) -> None:
        self._sink(self._batch.finish_step(plan, result, self._clock.now()))
        self._begin()

    def _write(self, staged: Import) -> bool:
        """False: it failed before it began."""
        failure = staged.failure
        if not failure:
            chunks, _ = self._staged[staged]
            try:
                self._runner.write(staged.pages, self._batch.limits.page_size, chunks, lambda: self._written(staged))
                return True
            except EngineError as error:
                failure = str(error)
        self._batch.finish_import(staged, written=False)
        self._end_import(staged, failure)
        return False

    def _written(self, staged: Import) -> None:
        kept = self._batch.finish_import(staged, written=True)
        self._end_import(staged, "" if kept else "the sequence is closed")
        self._flush()
        self._wake()  # not at once: the next step takes what was imported, if its ids come now

    def _end_import(self, staged: Import, failure: str) -> None:
        _, done = self._staged.pop(staged)
        key = staged.member.sequence.key
        done()
        self._sink(KvImportFailed(key, failure) if failure else KvImported(key))

    def _flush(self) -> None:
        changed = self._batch.flush(self._clock.now())
        if changed is not None:
            self._sink(changed)
