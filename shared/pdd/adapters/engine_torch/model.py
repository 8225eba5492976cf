"""The model: transformers' own classes and weights, with attention replaced by ours. Refuses, by name, what that cannot serve."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from ...core.errors import EngineError
from ...ports import KvShape
from .attention import ATTENTION, StepTables, attend
from .pages import DTYPES

SHAPES = ("llama", "mistral", "qwen2", "qwen3")
PLAIN_ROPE = ("default", "linear", "llama3", "yarn")  # the others let one sequence's length change another's positions


class PagedModel:
    """`max_context`: as asked for, or, where that is 0, the most that the model knows positions for."""

    def __init__(self, model_dir: Path, dtype: str, device: str, max_context: int = 0) -> None:
        """EngineError: no such model, or one whose attention is not plain causal attention within `max_context`."""
        if dtype not in DTYPES:
            raise EngineError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
        transformers_logging.disable_progress_bar()
        AttentionInterface.register(ATTENTION, attend)
        try:
            config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
            limit = context_limit(config)
            if max_context > limit:
                raise EngineError(f"max_context {max_context} exceeds the {limit} tokens that the model attends to")
            model = AutoModelForCausalLM.from_pretrained(
                model_dir, dtype=DTYPES[dtype], attn_implementation=ATTENTION, local_files_only=True
            )
        except (OSError, ValueError) as error:
            raise EngineError(f"cannot load a model from {model_dir}: {error}") from error
        self._model = model.to(device).eval()
        self._device = device
        self.kv_shape = kv_shape(config, dtype)
        self.max_context = max_context or limit

    def logits(self, ids: list[int], positions: Tensor, tables: StepTables, rows: list[int]) -> Tensor:
        """Writes the KV of every id; logits [len(rows), vocabulary] of the rows that are asked for."""
        asked = torch.tensor(rows, dtype=torch.long, device=self._device)
        out = self._model(
            input_ids=torch.tensor([ids], device=self._device),
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=asked,
            tables=tables,
        )
        logits: Tensor = out.logits[0]
        return logits


def kv_shape(config: Any, dtype: str) -> KvShape:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return KvShape(config.num_hidden_layers, config.num_key_value_heads or heads, head_dim, dtype)


def context_limit(config: Any) -> int:
    """Tokens of one sequence. EngineError where this engine's attention is not the model's."""
    if config.model_type not in SHAPES:
        raise EngineError(f"model type {config.model_type!r} is none of {', '.join(SHAPES)}")
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope not in PLAIN_ROPE:
        raise EngineError(f"rotary positions of type {rope!r} are none of {', '.join(PLAIN_ROPE)}")
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    positions = int(config.max_position_embeddings)
    return min(positions, int(window or positions))
