"""The torch runner writes what transformers alone writes (float32), however the work is cut up and wherever its pages lie."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue

import pytest
import torch
from tokenizers import Tokenizer

from pdd.adapters.engine_steps import SteppingEngine
from pdd.adapters.engine_torch import create_torch
from pdd.adapters.engine_torch.model import PagedModel
from pdd.adapters.engine_torch.pages import KvPages, as_tensor, runs
from pdd.adapters.engine_torch.row_kernel import attend_rows
from pdd.adapters.engine_torch.runner import TorchRunner
from pdd.adapters.model_files import ensure_demo_model
from pdd.core.errors import EngineError
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.sampling import Sampling
from pdd.core.steps import Sequence, Slice, StepPlan, StepResult
from pdd.ports import KvChunk, KvShape
from pdd.sim.world import World
from tests.models import alone, logits_alone, make_tiny_model, prompt, tiny_model

WAIT_S = 60
PAGES_TOKENS = 4096


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model_dir() -> Path:
    return tiny_model()


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


def test_the_tiny_models_outputs_are_varied(model_dir: Path) -> None:
    for seed in range(3):
        assert len(set(alone(model_dir, prompt(40, seed), 32))) > 24


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_each_kind_of_model_equals_transformers(kind: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, kind=kind, seed=3)
    with rig(folder) as here:
        assert here.finish(here.open(prompt(70)), 24) == alone(folder, prompt(70), 24)


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(("chunk", "page_size"), [(1, 16), (7, 1), (7, 64), (64, 64), (64, 16), (1000, 16)])
def test_any_chunk_and_page_size_writes_the_same(model_dir: Path, chunk: int, page_size: int, scattered: bool) -> None:
    with rig(model_dir, page_size, scattered=scattered) as here:
        for length in (1, 64, 105):
            ids = prompt(length, seed=length)
            assert here.finish(here.open(ids), 16, chunk) == alone(model_dir, ids, 16)


def test_eight_sequences_in_one_batch_do_not_disturb_each_other(model_dir: Path) -> None:
    prompts = [prompt(10 + 17 * i, seed=i) for i in range(8)]
    with rig(model_dir) as here:
        sequences = [here.open(ids) for ids in prompts]
        for turn in range(60):  # each starts later than the last, and prefills in chunks while the others decode
            active = [s for i, s in enumerate(sequences) if turn >= 3 * i and s.outputs < 20]
            if active:
                here.step(*((s, min(len(s.ids), s.computed + 13)) for s in active))
        for ids, sequence in zip(prompts, sequences, strict=True):
            assert sequence.ids[len(ids) :] == alone(model_dir, ids, 20)


def test_pages_of_a_shared_prefix_serve_a_second_sequence(model_dir: Path) -> None:
    common = prompt(96)
    with rig(model_dir, page_size=16) as here:
        first = here.open(common + prompt(20, seed=1))
        here.finish(first, 4)
        second = here.open(common + prompt(30, seed=2), shared=first.pages[:6])
        assert here.finish(second, 16) == alone(model_dir, common + prompt(30, seed=2), 16)


def test_a_step_without_samples_only_computes(model_dir: Path) -> None:
    with rig(model_dir) as here:
        sequence = here.open(prompt(40))
        here.step((sequence, 20))
        assert sequence.outputs == 0
        assert sequence.computed == 20


@pytest.mark.parametrize("sizes", [(16, 64), (64, 16), (1, 32)])
def test_kv_moves_to_an_engine_of_another_page_size(model_dir: Path, sizes: tuple[int, int]) -> None:
    ids = prompt(150)
    with rig(model_dir, sizes[0]) as there, rig(model_dir, sizes[1]) as here:
        sender = there.open(ids)
        eager = there.finish(sender, 5)
        receiver = here.open(ids)
        ends = [0, 37, 64, 149, 150]
        here.write(receiver, [there.export(sender, a, b) for a, b in pairwise(ends)])
        receiver.ids += eager  # extended here, in slices, without sampling
        assert here.finish(receiver, 24, chunk=2) == alone(model_dir, ids, 24)


def test_kv_moves_on_top_of_a_prefix_that_is_held_already(model_dir: Path) -> None:
    ids = prompt(150)
    with rig(model_dir, 16) as there, rig(model_dir, 32) as here:
        sender = there.open(ids)
        there.finish(sender, 1)
        older = here.open(ids[:100] + prompt(9, seed=5))
        here.finish(older, 3)
        receiver = here.open(ids, shared=older.pages[:3])
        here.write(receiver, [there.export(sender, 96, 150)])
        receiver.ids.append(sender.ids[150])
        assert here.finish(receiver, 16) == alone(model_dir, ids, 16)


@pytest.mark.parametrize("dtypes", [("bfloat16", "float32"), ("float32", "bfloat16"), ("float32", "float16")])
def test_kv_of_another_dtype_is_converted(model_dir: Path, dtypes: tuple[str, str]) -> None:
    ids = prompt(50)
    with rig(model_dir, dtype=dtypes[0]) as there, rig(model_dir, dtype=dtypes[1]) as here:
        sender = there.open(ids)
        there.finish(sender, 1)
        receiver = here.open(ids)
        sent = there.export(sender, 0, 50)
        here.write(receiver, [sent])
        again = as_tensor(here.export(receiver, 0, 50))
        assert torch.equal(again, as_tensor(sent).to(again.dtype))


def test_the_exported_layout_is_the_canonical_one(model_dir: Path) -> None:
    with rig(model_dir, page_size=16) as here:
        sequence = here.open(prompt(40))
        here.finish(sequence, 1)
        shape = here.runner.kv_shape
        chunk = here.export(sequence, 5, 38)
        assert shape == KvShape(4, 2, 32, "float32")
        assert chunk.data.nbytes == 33 * shape.bytes_per_token
        values = as_tensor(chunk)
        for token in (5, 20, 37):
            slot = sequence.pages[token // 16] * 16 + token % 16
            assert torch.equal(values[:, token - 5], here.kv.kv[:, :, :, slot])


def test_a_read_only_chunk_is_taken_as_well(model_dir: Path) -> None:
    with rig(model_dir) as here:
        sequence = here.open(prompt(40))
        here.finish(sequence, 1)
        chunk = here.export(sequence, 0, 40)
        other = here.open(prompt(40))
        here.write(other, [KvChunk(0, 40, chunk.shape, chunk.data.toreadonly())])
        assert here.export(other, 0, 40).data == chunk.data


@pytest.mark.parametrize("damage", ["none", "flip", "keys swapped", "positions swapped"])
def test_damaged_kv_is_told_apart(model_dir: Path, damage: str) -> None:
    """Keys carry their position: two tokens that change slots with K and V together are no damage, attention sums over both."""
    ids = prompt(60)
    sent = [*ids[:30], ids[31], ids[30], *ids[32:]] if damage == "positions swapped" else ids
    with rig(model_dir) as there, rig(model_dir) as here:
        sender = there.open(sent)
        there.finish(sender, 1)
        chunk = there.export(sender, 0, 60)
        values = as_tensor(chunk)
        if damage == "flip":
            values[:, 30] = -values[:, 30]
        if damage == "keys swapped":
            values[:, [30, 31], 0] = values[:, [31, 30], 0]
        receiver = here.open(ids)
        here.write(receiver, [chunk])
        receiver.ids.append(alone(model_dir, ids, 1)[0])
        assert (here.finish(receiver, 40) == alone(model_dir, ids, 40)) is (damage == "none")


def test_kv_of_another_shape_is_refused_and_nothing_is_written(model_dir: Path) -> None:
    with rig(model_dir) as here:
        wrong = KvShape(4, 1, 64, "float32")
        with pytest.raises(EngineError, match="another shape"):
            here.runner.write(
                [0], 16, [KvChunk(0, 4, wrong, memoryview(bytes(4 * wrong.bytes_per_token)))], lambda: None
            )
        right = here.runner.kv_shape
        with pytest.raises(EngineError, match="bytes, not"):
            here.runner.write([0], 16, [KvChunk(0, 4, right, memoryview(bytes(8)))], lambda: None)
        assert not here.kv.kv.any()


def test_export_beside_running_steps_gives_the_same_bytes(model_dir: Path) -> None:
    with rig(model_dir) as here:
        sequence = here.open(prompt(64))
        here.finish(sequence, 1)
        before = bytes(here.export(sequence, 0, 64).data)
        others = [here.open(prompt(300, seed=i)) for i in range(3)]
        for _ in range(10):
            slices = []
            for other in others:
                while len(other.pages) < 19:
                    other.pages.append(here.free.pop())
                slices.append(Slice(other, other.computed, other.computed + 30, False))
                other.computed += 30
            here.runner.run(StepPlan(tuple(slices)), lambda result: None)
            assert here.export(sequence, 0, 64).data == before
        for _ in range(10):
            here.posted.get(timeout=WAIT_S)()


def test_a_step_that_fails_raises_on_the_loops_thread(model_dir: Path) -> None:
    with rig(model_dir) as here:
        broken = here.open([10**9])
        with pytest.raises(IndexError):
            here.step((broken, 1))
        assert here.finish(here.open(prompt(5)), 3) == alone(model_dir, prompt(5), 3)


def test_warming_up_leaves_a_working_engine(model_dir: Path) -> None:
    with rig(model_dir) as here:
        here.runner.warm_up()
        assert here.finish(here.open(prompt(20)), 8) == alone(model_dir, prompt(20), 8)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_warming_up_compiles_all_that_a_step_needs(model_dir: Path, dtype: str) -> None:
    with rig(model_dir, dtype=dtype) as here:
        here.runner.warm_up()
        compiled = list(attend_rows.signatures)
        assert compiled
        first, second = here.open(prompt(70)), here.open(prompt(20, 1))
        here.step((first, 30))
        here.step((first, 70), (second, 19))
        here.step((second, 20), (first, 71))
        assert list(attend_rows.signatures) == compiled


def test_models_that_cannot_be_served_are_refused_by_name(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="9000 exceeds the 8192"):
        PagedModel(model_dir, "float32", "cpu", 9000)
    with pytest.raises(EngineError, match="int4"):
        PagedModel(model_dir, "int4", "cpu", 64)
    with pytest.raises(EngineError, match="cannot load"):
        PagedModel(tmp_path / "nothing", "float32", "cpu", 64)
    config = json.loads((model_dir / "config.json").read_text())
    for change, word in (
        ({"model_type": "gpt2"}, "gpt2"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ):
        shutil.copytree(model_dir, tmp_path / word)
        (tmp_path / word / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(EngineError, match=word):
            PagedModel(tmp_path / word, "float32", "cpu")


def test_the_factory_sizes_the_pool_by_memory_and_the_context_by_both(model_dir: Path) -> None:
    def engine(**wanted: int) -> SteppingEngine:
        return create_torch(
            model_dir,
            fingerprint="f",
            sink=lambda event: None,
            clock=World(),
            post=lambda action: action(),
            dtype="float32",
            **wanted,
        )

    page = 16 * KvShape(4, 2, 32, "float32").bytes_per_token
    more = [engine(memory_bytes=20_000_000 + extra).load().total_pages for extra in (0, page, 100 * page)]
    assert [pages - more[0] for pages in more] == [0, 1, 100]
    assert engine(pages=10).limits.max_context == 160
    assert engine(pages=1000).limits.max_context == 8192
    assert engine(pages=1000, max_context=100).limits.max_context == 100


def test_a_sliding_window_bounds_the_context(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, kind="mistral")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "sliding_window": 64}))
    assert PagedModel(folder, "float32", "cpu").max_context == 64
    with pytest.raises(EngineError, match="65 exceeds the 64"):
        PagedModel(folder, "float32", "cpu", 65)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 12, [(20, 28), (0, 4)]),
        (2, 6, [(22, 26)]),
        (3, 9, [(23, 28), (0, 1)]),
        (4, 4, []),
        (8, 16, [(0, 4), (12, 16)]),
    ],
)
def test_neighbouring_pages_make_one_run(start: int, stop: int, expected: list[tuple[int, int]]) -> None:
    assert list(runs([5, 6, 0, 3], 4, start, stop)) == expected


@pytest.mark.e2e
def test_the_demo_models_logits_equal_a_plain_forward_pass(tmp_path: Path) -> None:
    folder = ensure_demo_model(tmp_path)
    ids = (
        Tokenizer.from_file(str(folder / "tokenizer.json"))
        .encode("<|im_start|>user\nName three rivers.<|im_end|>\n" * 8)
        .ids
    )
    with rig(folder) as here:
        sequence = here.open(ids)
        here.step((sequence, 50))
        model, attention = here.runner._model, here.runner._attention
        sequence.pages += [here.free.pop() for _ in range(16)]
        ours = []
        with torch.inference_mode():
            for start, stop in pairwise([50, 51, 60, len(ids)]):
                tables = attention.lay([Slice(sequence, start, stop, True)])
                ours.append(model.logits(ids[start:stop], attention, tables))
        assert torch.allclose(torch.cat(ours), logits_alone(folder, ids)[[50, 59, -1]], atol=2e-3)
        assert here.finish(sequence, 16) == alone(folder, ids, 16)
