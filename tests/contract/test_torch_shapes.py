"""Every model shape, file layout and dtype that the torch engine takes: its logits are transformers' own."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pdd.adapters.engine_torch.attention import PagedAttention
from pdd.adapters.engine_torch.model import PagedModel
from pdd.adapters.engine_torch.pages import KvPages
from pdd.core.errors import EngineError
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.sampling import Sampling
from pdd.core.steps import Sequence, Slice
from tests.models import VOCABULARY, logits_alone, make_tiny_model, prompt

ENDS = (0, 1, 40, 41, 90, 97)  # of the slices in which a prompt is computed
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied": {"tie_word_embeddings": True},
    "llama-biases": {"attention_bias": True, "mlp_bias": True},
    "llama-every-head-its-own-kv": {"num_key_value_heads": 4},
    "llama-one-kv-head": {"num_key_value_heads": 1},
    "llama-one-layer": {"layers": 1},
    "llama-rope-llama3": {"rope_parameters": LLAMA3},
    "llama-rope-yarn": {"rope_parameters": YARN},
    "llama-rope-linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "mistral": {},
    "mistral-wide-heads": {"head_dim": 64},
    "qwen2": {},
    "qwen3": {},
    "qwen3-wide-heads": {"head_dim": 64, "num_attention_heads": 6},
}


def make(tmp_path: Path, shape: str, **more: Any) -> Path:
    return make_tiny_model(tmp_path / shape, kind=shape.split("-")[0], seed=3, **{**SHAPES[shape], **more})


def logits(model_dir: Path, ids: list[int], dtype: str = "float32", kernel: bool = True) -> Tensor:
    """Of the last row of each slice between ENDS, all in float32."""
    with torch.inference_mode():
        model = PagedModel(model_dir, dtype, "cpu")
        attention = PagedAttention(KvPages(model.kv_shape, 64, 16, "cpu"), model.heads, kernel=kernel)
        sequence = Sequence(Key(RequestId("r"), Epoch(1)), ids, len(ids), Sampling(1), pages=[9, 10, 3, 40, 41, 42, 1])
        found = []
        for start, stop in pairwise(ENDS):
            tables = attention.lay([Slice(sequence, start, stop, True)])
            found.append(model.logits(ids[start:stop], attention, tables))
        return torch.cat(found)


def expected(model_dir: Path, ids: list[int]) -> Tensor:
    return logits_alone(model_dir, ids)[[stop - 1 for stop in ENDS[1:]]]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("shape", list(SHAPES))
def test_each_shape_has_transformers_logits(shape: str, tmp_path: Path) -> None:
    folder, ids = make(tmp_path, shape), prompt(ENDS[-1])
    assert torch.allclose(logits(folder, ids), expected(folder, ids), atol=5e-4)


@pytest.mark.parametrize("shape", ["llama", "mistral", "qwen2", "qwen3"])
def test_weights_in_shards_are_the_same_weights(shape: str, tmp_path: Path) -> None:
    whole, ids = make(tmp_path, shape), prompt(ENDS[-1])
    sharded = make(tmp_path / "sharded", shape, shard="300KB")
    assert len(list(sharded.glob("*.safetensors"))) > 3
    assert torch.equal(logits(sharded, ids), logits(whole, ids))


def test_a_missing_or_damaged_shard_and_missing_or_strange_weights_are_named(tmp_path: Path) -> None:
    folder = make(tmp_path, "llama", shard="300KB")
    shards = sorted(folder.glob("*.safetensors"))
    kept = shards[1].read_bytes()
    shards[1].write_bytes(kept[: len(kept) // 2])
    with pytest.raises(EngineError, match=shards[1].name):
        PagedModel(folder, "float32", "cpu")
    shards[1].unlink()
    with pytest.raises(EngineError, match=shards[1].name):
        PagedModel(folder, "float32", "cpu")
    shards[1].write_bytes(kept)
    index = folder / "model.safetensors.index.json"
    told = json.loads(index.read_text())
    index.write_text("{}")
    with pytest.raises(EngineError, match=r"index\.json"):
        PagedModel(folder, "float32", "cpu")
    index.write_text(json.dumps(told))
    config = json.loads((folder / "config.json").read_text())
    for change, said in (
        ({"num_hidden_layers": 5}, r"no weights 'model.layers.4"),
        ({"num_hidden_layers": 3}, r"unknown use: model.layers.3"),
        ({"intermediate_size": 255}, r"not floats of \[255, 128\]"),
        ({"hidden_act": "gelu"}, r"'gelu' is not 'silu'"),
    ):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(EngineError, match=said):
            PagedModel(folder, "float32", "cpu")


def test_a_tied_model_whose_files_hold_an_output_matrix_all_the_same_uses_that(tmp_path: Path) -> None:
    folder, ids = make(tmp_path, "llama"), prompt(ENDS[-1])
    tied = tmp_path / "tied"
    shutil.copytree(folder, tied)
    config = json.loads((tied / "config.json").read_text())
    (tied / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    assert torch.allclose(logits(tied, ids), expected(tied, ids), atol=5e-4)


@pytest.mark.parametrize("stored", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_weights_of_any_dtype_are_served_in_any_dtype(stored: str, dtype: str, tmp_path: Path) -> None:
    """Against the stored weights in float32: half precision may stand off by little, and picks nearly the same tokens."""
    folder, ids = make(tmp_path, "qwen3", dtype=stored), prompt(ENDS[-1])
    ours, true = logits(folder, ids, dtype), expected(folder, ids)
    assert ours.dtype is torch.float32 and ours.shape == (len(ENDS) - 1, VOCABULARY)
    bound = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}[dtype]
    assert (ours - true).abs().max() < bound * true.std() * 10
    assert (ours - true).std() < bound * true.std()


@pytest.mark.parametrize("shape", ["llama", "llama-one-kv-head", "qwen3-wide-heads"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_and_without_the_compiled_kernel_the_logits_are_the_same(shape: str, dtype: str, tmp_path: Path) -> None:
    folder, ids = make(tmp_path, shape), prompt(ENDS[-1])
    with_it, without = logits(folder, ids, dtype), logits(folder, ids, dtype, kernel=False)
    assert torch.allclose(with_it, without, atol=1e-4 if dtype == "float32" else 0.1 * float(without.std()))
