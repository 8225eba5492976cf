"""Tiny models for tests: seeded random weights and a real byte-level tokenizer, made where they are needed, the same every time.

They know nothing, but their greedy outputs are varied, so that one wrong position or one damaged token shows. Also the baseline:
what transformers alone writes.
"""

import atexit
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
from transformers.utils import logging as transformers_logging

VOCABULARY = 415  # of every tiny model
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END = 2  # <|im_end|>
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT = (
    "The relay writes the first words while the cache is on its way to the main site.",
    "A tool returned 42 rows; the assistant reads them and answers the user's question.",
    "Größe, naïve café, 東京の天気, привет мир, emoji 🙂🚀 and the system prompt above.",
)
CONFIGS = {"llama": LlamaConfig, "mistral": MistralConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}


def make_tiny_model(
    folder: Path,
    *,
    kind: str = "llama",
    seed: int = 0,
    dtype: str = "float32",
    layers: int = 4,
    shard: str = "1GB",
    **changed: Any,
) -> Path:
    """A Hugging Face folder: d 128, 4 heads, 2 KV heads of 32. `seed` changes the weights, never the tokenizer.

    `changed`: other values of its config; `shard`: how large a file of weights may be.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _make_tokenizer(folder)
    usual = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 8192,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": END,
        "pad_token_id": 0,
        "use_cache": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
    }
    transformers_logging.disable_progress_bar()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(CONFIGS[kind](**{**usual, **changed}), dtype=getattr(torch, dtype))
        _vary_vectors(model)
    model.save_pretrained(folder, max_shard_size=shard)
    return folder


def _vary_vectors(model: Any) -> None:
    """Norms start as ones and biases as zeros, which would hide that one is left out."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))


@cache
def tiny_model() -> Path:
    """The default one, made once in this process."""
    folder = tempfile.TemporaryDirectory(prefix="pdd-tiny-")
    atexit.register(folder.cleanup)
    return make_tiny_model(Path(folder.name))


def alone(folder: Path, ids: list[int], count: int) -> list[int]:
    """The baseline: `count` greedy ids after the prompt, by transformers' own attention and cache, in float32. It never stops early."""
    model = _load(folder)
    prompt = torch.tensor([ids])
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    written: list[int] = out[0, len(ids) :].tolist()
    return written


def logits_alone(folder: Path, ids: list[int]) -> torch.Tensor:
    """[len(ids), vocabulary] of one plain forward pass, in float32."""
    with torch.inference_mode():
        logits: torch.Tensor = _load(folder)(torch.tensor([ids])).logits[0]
    return logits


def prompt(length: int, seed: int = 0) -> list[int]:
    """Arbitrary ids, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(len(SPECIAL), VOCABULARY, (length,), generator=generator).tolist()


_loaded: dict[Path, Any] = {}


def _load(folder: Path) -> Any:
    if folder not in _loaded:
        transformers_logging.disable_progress_bar()
        _loaded[folder] = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True
        ).eval()
    return _loaded[folder]


def _make_tokenizer(folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json. All 256 bytes are tokens, so any text has ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 8192,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    assert tokenizer.get_vocab_size() == VOCABULARY
