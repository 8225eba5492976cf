"""One engine alone in one process: no router, no bus, no hand-over, no cache between prompts. What every answer is held against."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from pdd.adapters.engine_torch import create_torch
from pdd.adapters.model_files import fingerprint
from pdd.core.effects import OpenSequence, Speak
from pdd.core.events import Event, SequenceOpened, StepDone
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.sampling import Sampling
from pdd.runtime.driver import LoopClock

PAGE_TOKENS = 16
CHUNK_TOKENS = 512  # not the served workers': what is written must not depend on it


def answers(
    model_dir: Path, dtype: str, prompts: Sequence[Sequence[int]], sampling: Sampling, told: Callable[[int], None]
) -> list[list[int]]:
    """What the engine writes after each prompt. `told` hears how many are done."""
    return asyncio.run(_answers(model_dir, dtype, prompts, sampling, told))


async def _answers(
    model_dir: Path, dtype: str, prompts: Sequence[Sequence[int]], sampling: Sampling, told: Callable[[int], None]
) -> list[list[int]]:
    loop = asyncio.get_running_loop()
    events: asyncio.Queue[Event] = asyncio.Queue()
    longest = max(map(len, prompts)) + sampling.max_tokens
    engine = create_torch(
        model_dir,
        fingerprint=fingerprint(model_dir),
        sink=events.put_nowait,
        clock=LoopClock(loop),
        post=lambda action: _post(loop, action),
        dtype=dtype,
        page_size=PAGE_TOKENS,
        pages=2 * (longest // PAGE_TOKENS + 1),
        chunk_tokens=CHUNK_TOKENS,
        threads=1,
    )
    written: list[list[int]] = []
    for number, prompt in enumerate(prompts):
        key = Key(RequestId(f"alone-{number}"), Epoch(1))
        salt = str(number)  # so that no prompt finds another's KV
        engine.open(OpenSequence(key, tuple(prompt), len(prompt), sampling, salt, compute_last=True))
        engine.speak(Speak(key))
        written.append(await _written(events))
        engine.close(key)
        told(number + 1)
    return written


async def _written(events: "asyncio.Queue[Event]") -> list[int]:
    ids: list[int] = []
    while True:
        match await events.get():
            case StepDone(written=parts):
                for part in parts:
                    ids += part.ids
                    if part.finish:
                        return ids
            case SequenceOpened():
                continue
            case event:
                raise RuntimeError(f"the engine answered {event}")


def _post(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(action)
