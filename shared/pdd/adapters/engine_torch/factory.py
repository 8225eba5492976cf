"""Model folder and settings -> an engine that is warm and can open sequences. Imports torch only when called: not every role has it."""

from collections.abc import Callable
from pathlib import Path

from ...core.batch import Batch, Limits
from ...core.errors import EngineError
from ...ports import Clock, Sink
from ..engine_steps import SteppingEngine
from ..grammar import grammars_of


def create_torch(
    model_dir: Path,
    *,
    fingerprint: str,
    sink: Sink,
    clock: Clock,
    post: Callable[[Callable[[], None]], None],
    dtype: str = "bfloat16",
    device: str = "cpu",
    page_size: int = 16,
    pages: int = 0,
    memory_bytes: int = 0,
    max_sequences: int = 32,
    max_context: int = 0,
    chunk_tokens: int = 256,
    threads: int = 1,
) -> SteppingEngine:
    """Blocks while it loads and warms up. The pool has `pages`, or as many as `memory_bytes` leave beside weights and a step's work.

    `max_context` 0: what the model and the pool allow. `post` runs an action on the loop's thread.
    EngineError: the model cannot be served, or the pool is too small to serve anything.
    """
    from .grammar import Masks
    from .model import PagedModel
    from .pages import KvPages
    from .runner import TorchRunner

    model = PagedModel(model_dir, dtype, device, max_context)
    if not pages:
        work = model.step_bytes(chunk_tokens * 5 // 4 + max_sequences, max_sequences)
        pages = (memory_bytes - model.bytes - work) // (page_size * model.kv_shape.bytes_per_token)
        if pages < 1:
            needed = f"{model.bytes} bytes of weights and {work} for a step's work"
            raise EngineError(f"{memory_bytes} bytes leave no page of {page_size} tokens beside {needed}")
    context = max_context or min(model.max_context, pages * page_size)
    limits = Limits(pages, page_size, max_sequences, context, chunk_tokens)
    grammars = grammars_of(model_dir)
    masks = Masks(grammars, 2 * max_sequences) if grammars else None
    runner = TorchRunner(model, KvPages(model.kv_shape, pages, page_size, device), post, threads, masks)
    runner.warm_up()
    return SteppingEngine(Batch(limits, fingerprint), runner, sink, clock)
