"""Runs steps: one worker thread owns the model and is the only writer of pages; results return on the loop's thread by `post`.

A step that raises raises again on the loop's thread: a worker that cannot compute must not look alive. Runs on CPU; `device="cuda"`
takes the same code but has not been run.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

import torch

from ...core.features import GRAMMAR
from ...core.ids import Epoch, Key, RequestId
from ...core.sampling import Sampling
from ...core.steps import Sequence, Slice, StepPlan, StepResult
from ...ports import KvChunk, KvShape
from .attention import PagedAttention
from .grammar import Masks
from .model import PagedModel
from .pages import KvPages, check
from .sampler import sample_rows

Post = Callable[[Callable[[], None]], None]


class TorchRunner:
    def __init__(self, model: PagedModel, kv: KvPages, post: Post, threads: int, masks: Masks | None = None) -> None:
        self.kv_shape: KvShape = kv.shape
        self._masks = masks
        self._model = model
        self._kv = kv
        self._attention = PagedAttention(kv, model.heads, threads)
        self._post = post
        self._worker = ThreadPoolExecutor(1, "engine", torch.set_num_threads, (threads,))

    @property
    def features(self) -> tuple[str, ...]:
        return () if self._masks is None else (GRAMMAR,)

    def refuses(self, sampling: Sampling) -> str:
        """A grammar is compiled here, so that no step has to."""
        if not sampling.grammar:
            return ""
        return "no_grammar" if self._masks is None else self._masks.refuses(sampling.grammar)

    def run(self, plan: StepPlan, done: Callable[[StepResult], None]) -> None:
        def work() -> Callable[[], None]:
            result = self._step(plan)
            return lambda: done(result)

        self._submit(work)

    def export(self, pages: list[int], page_size: int, start: int, stop: int) -> memoryview:
        """Canonical bytes of tokens [start, stop), all computed. Any thread may ask, also while a step runs."""
        return self._kv.read(pages, start, stop)

    def write(self, pages: list[int], page_size: int, chunks: list[KvChunk], done: Callable[[], None]) -> None:
        """EngineError at once where a chunk is not this model's KV; then nothing is written."""
        for chunk in chunks:
            check(chunk, self.kv_shape)

        def work() -> Callable[[], None]:
            for chunk in chunks:
                self._kv.write(pages, chunk)
            return done

        self._submit(work)

    def warm_up(self) -> None:
        """Blocks for one small prefill and one decode step. Only before the first sequence: it scribbles on pages."""
        count = min(32, self._kv.page_count * self._kv.page_size)
        pages = list(range(-(-count // self._kv.page_size)))
        made_up = Sequence(Key(RequestId(""), Epoch(0)), [0] * count, count, Sampling(1), pages=pages)
        for start in (0, count - 1):
            self._worker.submit(self._step, StepPlan((Slice(made_up, start, count, True),))).result()

    def close(self) -> None:
        """Ends after the work under way; what waits is dropped."""
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _submit(self, work: Callable[[], Callable[[], None]]) -> None:
        def job() -> None:
            try:
                self._post(work())
            except Exception as error:
                self._post(_raising(error))

        self._worker.submit(job)

    @torch.inference_mode()
    def _step(self, plan: StepPlan) -> StepResult:
        began = perf_counter()
        tables = self._attention.lay(plan.slices)
        ids = [token for part in plan.slices for token in part.sequence.ids[part.start : part.stop]]
        logits = self._model.logits(ids, self._attention, tables)
        sampled = sample_rows(logits, [part for part in plan.slices if part.sample], self._masks)
        return StepResult(sampled, perf_counter() - began)


def _raising(error: Exception) -> Callable[[], None]:
    def raise_it() -> None:
        raise error

    return raise_it
