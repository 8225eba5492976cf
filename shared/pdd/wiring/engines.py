"""The engines by the names that settings give them."""

import json
from collections.abc import Callable
from typing import Any

from ..adapters.engine_steps import SteppingEngine
from ..adapters.model_files import fingerprint
from ..core.cost import COSTS
from ..ports import KvShape
from ..runtime.settings import WorkerSettings
from .process import Process


def _torch_engine(process: Process, settings: WorkerSettings) -> SteppingEngine:
    from ..adapters.engine_torch import create_torch  # here alone: a scripted engine runs where there is no torch

    return create_torch(
        settings.model_dir,
        fingerprint=fingerprint(settings.model_dir),
        sink=process.post,
        clock=process.clock,
        post=process.on_loop,
        dtype=settings.dtype,
        device=settings.device,
        page_size=settings.page_tokens,
        pages=0 if settings.memory_bytes else settings.pages,
        memory_bytes=settings.memory_bytes,
        max_sequences=settings.max_sequences,
        max_context=settings.max_context,
        chunk_tokens=settings.chunk_tokens,
        threads=settings.threads,
    )


def _scripted_engine(process: Process, settings: WorkerSettings) -> SteppingEngine:
    """Takes vocabulary, end token and KV shape from the model's folder, and no weights."""
    from ..adapters.engine_scripted import Script, create_scripted

    config = json.loads((settings.model_dir / "config.json").read_text())
    script = Script(vocab=config["vocab_size"], end_token=config["eos_token_id"])
    return create_scripted(
        pages=settings.pages,
        page_size=settings.page_tokens,
        max_sequences=settings.max_sequences,
        max_context=settings.max_context or config["max_position_embeddings"],
        sink=process.post,
        clock=process.clock,
        cost=COSTS[settings.scripted_cost],
        chunk_tokens=settings.chunk_tokens,
        fingerprint=fingerprint(settings.model_dir),
        kv_shape=_shape(config, settings.dtype),
        script=script,
    )


def _shape(config: dict[str, Any], dtype: str) -> KvShape:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return KvShape(config["num_hidden_layers"], config.get("num_key_value_heads") or heads, head_dim, dtype)


ENGINES: dict[str, Callable[[Process, WorkerSettings], SteppingEngine]] = {
    "torch": _torch_engine,
    "scripted": _scripted_engine,
}
