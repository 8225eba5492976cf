"""A Llama in one GGUF file -> a Hugging Face folder: config, weights in bfloat16, byte-level BPE tokenizer, chat template.

Made for SmolLM2: its pre-tokenizer splits digits, and its end of turn is the end of a sequence.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...core.errors import EngineError

CONTROL_TOKEN = 3  # GGUF's token type
END_OF_TURN = "<|im_end|>"
LAYER_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
WHOLE_PARTS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def convert(source: Path, folder: Path, progress: Callable[[str, float], None]) -> None:
    """EngineError where the `gguf` package is missing or the file is no Llama."""
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise EngineError("converting the model needs the package gguf: pip install 'pdd[local]'") from error
    reader = GGUFReader(source)

    def value(name: str) -> Any:
        return reader.fields[name].contents()

    if value("general.architecture") != "llama":
        raise EngineError(f"{source} is no Llama")
    config = _config(value)
    _write_json(folder / "config.json", config)
    ends = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", ends)
    _write_tokenizer(folder, value)
    _write_weights(folder, reader, config, progress)


def _config(value: Callable[[str], Any]) -> dict[str, Any]:
    heads = int(value("llama.attention.head_count"))
    hidden = int(value("llama.embedding_length"))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(value("tokenizer.ggml.tokens")),
        "hidden_size": hidden,
        "intermediate_size": int(value("llama.feed_forward_length")),
        "num_hidden_layers": int(value("llama.block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(value("llama.attention.head_count_kv")),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": int(value("llama.context_length")),
        "rms_norm_eps": round(float(value("llama.attention.layer_norm_rms_epsilon")), 12),  # stored as float32
        "rope_theta": float(value("llama.rope.freq_base")),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(value("llama.rope.freq_base"))},
        "tie_word_embeddings": True,
        "bos_token_id": int(value("tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(value("tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(value("tokenizer.ggml.padding_token_id")),
        "dtype": "bfloat16",
    }


def _write_weights(folder: Path, reader: Any, config: dict[str, Any], progress: Callable[[str, float], None]) -> None:
    import numpy as np
    import torch
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for done, tensor in enumerate(reader.tensors):
        progress("converting the model", done / len(reader.tensors))
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if part in heads:
            values = split_rotary_halves(values, heads[part])
        weights[_weight_name(tensor.name)] = torch.from_numpy(np.ascontiguousarray(values)).bfloat16()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def split_rotary_halves(rows: Any, heads: int) -> Any:
    """GGUF interleaves the two halves of each head's rotary pairs, row by row; transformers keeps them apart. [heads * head_dim, d]."""
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _weight_name(name: str) -> str:
    if name in WHOLE_PARTS:
        return WHOLE_PARTS[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{LAYER_PARTS[part]}.{kind}"


def _write_tokenizer(folder: Path, value: Callable[[str], Any]) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens = value("tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in value("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, value("tokenizer.ggml.token_type"), strict=True)
    control = [token for token, kind in kinds if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[value("tokenizer.ggml.bos_token_id")],
        "eos_token": END_OF_TURN,
        "pad_token": tokens[value("tokenizer.ggml.padding_token_id")],
        "unk_token": tokens[value("tokenizer.ggml.unknown_token_id")],
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(value("llama.context_length")),
        "chat_template": value("tokenizer.chat_template"),
    }
    _write_json(folder / "tokenizer_config.json", config)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
