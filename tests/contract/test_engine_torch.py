"""The torch runner writes what transformers alone writes (float32), however the work is cut up and wherever its pages lie."""

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from pdd.adapters.engine_steps import SteppingEngine
from pdd.adapters.engine_torch import create_torch
from pdd.adapters.engine_torch.model import PagedModel
from pdd.adapters.engine_torch.pages import runs
from pdd.adapters.engine_torch.row_kernel import attend_rows
from pdd.adapters.model_files import ensure_demo_model
from pdd.core.errors import EngineError
from pdd.core.steps import Slice
from pdd.ports import KvShape
from pdd.sim.world import World
from tests.contract.torch_rig import rig
from tests.models import alone, logits_alone, make_tiny_model, prompt, tiny_model


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model_dir() -> Path:
    return tiny_model()


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
