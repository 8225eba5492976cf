"""A torch runner in the test's hand: who steps, where pages lie and what has crossed, the test decides."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from pdd.adapters.engine_torch.model import PagedModel
from pdd.adapters.engine_torch.pages import KvPages
from pdd.adapters.engine_torch.runner import TorchRunner
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.sampling import Sampling
from pdd.core.steps import Sequence, Slice, StepPlan, StepResult
from pdd.ports import KvChunk

WAIT_S = 60
PAGES_TOKENS = 4096


class Rig:
    """A runner whose results are taken by the test's own thread, and a hand that gives out pages at random."""

    def __init__(self, model_dir: Path, page_size: int = 16, dtype: str = "float32", scattered: bool = True) -> None:
        self.page_size = page_size
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        model = PagedModel(model_dir, dtype, "cpu", 4096)
        self.kv = KvPages(model.kv_shape, PAGES_TOKENS // page_size, page_size, "cpu")
        self.runner = TorchRunner(model, self.kv, self.posted.put, threads=1)
        self.free = list(range(PAGES_TOKENS // page_size))
        if scattered:
            random.Random(1).shuffle(self.free)

    def open(self, ids: list[int], shared: list[int] | None = None) -> Sequence:
        """A greedy sequence. `shared`: pages of an equal prefix, whole and computed."""
        pages = list(shared or [])
        sequence = Sequence(Key(RequestId("r"), Epoch(1)), list(ids), len(ids), Sampling(1000), pages=pages)
        sequence.computed = len(pages) * self.page_size
        return sequence

    def step(self, *wanted: tuple[Sequence, int]) -> None:
        """One step over (sequence, up to how many ids); samples where the end of the ids is reached."""
        slices = []
        for sequence, stop in wanted:
            while len(sequence.pages) * self.page_size < stop:
                sequence.pages.append(self.free.pop())
            slices.append(Slice(sequence, sequence.computed, stop, sample=stop == len(sequence.ids)))
        results: list[StepResult] = []
        self.runner.run(StepPlan(tuple(slices)), results.append)
        self.posted.get(timeout=WAIT_S)()
        sampled = iter(results[0].sampled)
        for part in slices:
            part.sequence.computed = part.stop
            if part.sample:
                part.sequence.ids.append(next(sampled).token)

    def write(self, sequence: Sequence, chunks: list[KvChunk]) -> None:
        stop = max(chunk.stop for chunk in chunks)
        while len(sequence.pages) * self.page_size < stop:
            sequence.pages.append(self.free.pop())
        done: list[bool] = []
        self.runner.write(sequence.pages, self.page_size, chunks, lambda: done.append(True))
        self.posted.get(timeout=WAIT_S)()
        assert done
        sequence.computed = stop

    def export(self, sequence: Sequence, start: int, stop: int) -> KvChunk:
        data = self.runner.export(sequence.pages, self.page_size, start, stop)
        return KvChunk(start, stop, self.runner.kv_shape, data)

    def finish(self, sequence: Sequence, outputs: int, chunk: int = 1000) -> list[int]:
        while sequence.outputs < outputs:
            self.step((sequence, min(len(sequence.ids), sequence.computed + chunk)))
        return sequence.ids[sequence.prompt_len :]


@contextmanager
def rig(model_dir: Path, page_size: int = 16, dtype: str = "float32", scattered: bool = True) -> Iterator[Rig]:
    made = Rig(model_dir, page_size, dtype, scattered)
    try:
        yield made
    finally:
        made.runner.close()
