"""Two folders have one fingerprint only where their KV means the same; the demo's model is what its package says."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from pdd.adapters.model_files import ensure_demo_model, fingerprint
from pdd.adapters.model_files.demo_model import STAMP
from pdd.adapters.model_files.fingerprint import DIGESTS
from pdd.adapters.model_files.from_gguf import split_rotary_halves
from pdd.core.errors import EngineError
from pdd.core.fingerprint import differing
from tests.models import alone, logits_alone, make_tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model")


def test_a_copy_has_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    first = fingerprint(folder)
    assert "kv=4x2x32;" in first and len(first) < 200
    assert fingerprint(folder) == first
    assert fingerprint(make_tiny_model(tmp_path / "again")) == first
    shutil.copytree(folder, tmp_path / "copy", ignore=shutil.ignore_patterns(DIGESTS))
    assert fingerprint(tmp_path / "copy") == first


def test_other_weights_tokenizer_template_or_positions_have_another(folder: Path, tmp_path: Path) -> None:
    seen = {fingerprint(folder), fingerprint(make_tiny_model(tmp_path / "other", seed=1))}
    for name, old, new in (
        ("tokenizer.json", '"ByteLevel"', '"ByteLevel" '),
        ("tokenizer_config.json", "message['role']", "message['name']"),
        ("config.json", "10000.0", "20000.0"),
    ):
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))
        seen.add(fingerprint(folder))
        (folder / name).write_text(text)
    assert len(seen) == 5


@pytest.mark.parametrize(
    ("name", "old", "new", "fields"),
    [
        ("tokenizer.json", '"ByteLevel"', '"ByteLevel" ', ("tokenizer",)),
        ("tokenizer_config.json", "message['role']", "message['name']", ("chat_template",)),
        ("config.json", "10000.0", "20000.0", ("config",)),
        ("config.json", '"num_key_value_heads": 2', '"num_key_value_heads": 4', ("config", "kv")),
    ],
)
def test_a_change_is_known_by_its_field(folder: Path, name: str, old: str, new: str, fields: tuple[str, ...]) -> None:
    first, text = fingerprint(folder), (folder / name).read_text()
    (folder / name).write_text(text.replace(old, new))
    assert differing(first, fingerprint(folder)) == fields


def test_how_a_model_is_run_is_no_part_of_it(folder: Path) -> None:
    first = fingerprint(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16", "transformers_version": "0"}))
    assert fingerprint(folder) == first


def test_changed_weights_are_hashed_again_and_a_spoilt_digest_file_does_no_harm(folder: Path) -> None:
    first = fingerprint(folder)
    (folder / DIGESTS).write_text("[1]")
    assert fingerprint(folder) == first
    weights = folder / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    assert fingerprint(folder) != first


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no safetensors"):
        fingerprint(tmp_path)


def test_rotary_halves_are_told_apart() -> None:
    interleaved = torch.tensor([[0, 0], [4, 4], [1, 1], [5, 5], [2, 2], [6, 6], [3, 3], [7, 7]]).numpy()
    assert split_rotary_halves(interleaved, 1)[:, 0].tolist() == list(range(8))
    assert split_rotary_halves(interleaved, 2)[:, 0].tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.e2e
def test_the_demo_model_is_converted_once_and_mended_when_damaged(cache: Path) -> None:
    said: list[tuple[str, float]] = []
    folder = ensure_demo_model(cache, lambda what, done: said.append((what, done)))
    assert [done for _, done in said] == sorted(done for _, done in said)
    assert said[-1] == ("model ready", 1.0)
    assert [entry.name for entry in cache.iterdir()] == [folder.name]
    first, made_at = fingerprint(folder), (folder / STAMP).stat().st_mtime_ns
    assert ensure_demo_model(cache) == folder
    assert (folder / STAMP).stat().st_mtime_ns == made_at
    (folder / "model.safetensors").write_bytes(b"cut short")
    assert fingerprint(ensure_demo_model(cache)) == first
    assert [entry.name for entry in cache.iterdir()] == [folder.name]


@pytest.mark.e2e
def test_the_demo_model_answers_a_question(cache: Path) -> None:
    torch.set_num_threads(1)
    folder = ensure_demo_model(cache)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    ids = tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    assert "The capital of France is Paris.<|im_end|>" in tokenizer.decode(alone(folder, ids, 12))
    assert logits_alone(folder, ids)[-1].argmax() == tokenizer.convert_tokens_to_ids("The")


@pytest.mark.e2e
def test_the_demo_tokenizer_splits_digits_and_keeps_every_byte(cache: Path) -> None:
    tokenizer = Tokenizer.from_file(str(ensure_demo_model(cache) / "tokenizer.json"))
    assert tokenizer.encode("12345").tokens == ["1", "2", "3", "4", "5"]
    assert tokenizer.encode("<|im_start|>user\n").tokens[0] == "<|im_start|>"
    text = "naïve 東京 🙂 x=10\n\n\tif y:"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
