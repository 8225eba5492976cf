"""KV of the torch runner moves: exported in the canonical layout, written wherever the pages lie, refused where it does not fit."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from pdd.adapters.engine_torch.pages import as_tensor
from pdd.core.errors import EngineError
from pdd.core.steps import Slice, StepPlan
from pdd.ports import KvChunk, KvShape
from tests.contract.torch_rig import WAIT_S, rig
from tests.models import alone, prompt, tiny_model


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model_dir() -> Path:
    return tiny_model()


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
