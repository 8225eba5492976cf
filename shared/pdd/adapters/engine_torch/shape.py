"""What a config.json says of a model of the Llama kind, and whether this engine's attention is that model's. Refuses by name."""

from dataclasses import dataclass
from typing import Any

from ...core.errors import EngineError
from ...ports import KvShape

KINDS = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class ModelShape:
    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    eps: float
    tied: bool  # the output matrix is the embedding, unless the files hold one
    context: int  # the most tokens of one sequence

    def kv(self, dtype: str) -> KvShape:
        return KvShape(self.layers, self.kv_heads, self.head_dim, dtype)


def model_shape(config: Any) -> ModelShape:
    """EngineError where the model is not plain causal attention with a gated SiLU."""
    if config.model_type not in KINDS:
        raise EngineError(f"model type {config.model_type!r} is none of {', '.join(KINDS)}")
    if config.hidden_act != "silu":
        raise EngineError(f"activation {config.hidden_act!r} is not 'silu'")
    heads = config.num_attention_heads
    return ModelShape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        inner=config.intermediate_size,
        heads=heads,
        kv_heads=config.num_key_value_heads or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocabulary=config.vocab_size,
        eps=config.rms_norm_eps,
        tied=config.tie_word_embeddings,
        context=_context(config),
    )


def _context(config: Any) -> int:
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    positions = int(config.max_position_embeddings)
    return min(positions, int(window or positions))
