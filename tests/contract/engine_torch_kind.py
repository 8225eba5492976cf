"""The torch engine over a tiny random model in float32, as the engines' contract creates one."""

from collections.abc import Callable

from pdd.adapters.engine_steps import SteppingEngine
from pdd.adapters.engine_torch import create_torch
from pdd.core.batch import Limits
from pdd.ports import Clock, Sink
from tests.models import tiny_model


def create_tiny_torch(
    limits: Limits, sink: Sink, clock: Clock, post: Callable[[Callable[[], None]], None]
) -> SteppingEngine:
    return create_torch(
        tiny_model(),
        fingerprint="tiny",
        sink=sink,
        clock=clock,
        post=post,
        dtype="float32",
        page_size=limits.page_size,
        pages=limits.pages,
        max_sequences=limits.max_sequences,
        max_context=limits.max_context,
        chunk_tokens=limits.chunk_tokens,
    )
