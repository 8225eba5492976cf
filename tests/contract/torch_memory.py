"""An engine in a process of its own: fills every page, runs its largest steps, and prints how many bytes that took.

Private memory is counted, as a container's limit does. What libraries and compiled code take, whatever the budget, a small engine has
taken before.
"""

import sys
from pathlib import Path

import torch

from pdd.adapters.engine_steps import SteppingEngine
from pdd.adapters.engine_torch import create_torch
from pdd.core.batch import Limits
from pdd.ports import Clock, Sink
from tests.contract.engines import GREEDY, EngineKind, Post, Rig


def private_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def fill(model_dir: Path, dtype: str, memory_bytes: int) -> tuple[Rig, int]:
    """The rig, so that nothing of it is given back yet, and how many pages its engine has."""

    def create(limits: Limits, sink: Sink, clock: Clock, post: Post) -> SteppingEngine:
        return create_torch(
            model_dir, fingerprint="f", sink=sink, clock=clock, post=post,
            dtype=dtype, memory_bytes=memory_bytes, max_sequences=8, chunk_tokens=256,
        )  # fmt: skip

    rig = Rig(EngineKind(create, threaded=True, vocab=400))
    desk = rig.desk()
    pages = desk.engine.load().total_pages
    for n in range(8):
        desk.open(f"r{n}", rig.prompt(pages * 16 // 8 - 32, n), GREEDY)
        desk.speak(f"r{n}")
    rig.settle()
    assert desk.engine.load().free_pages < 16
    return rig, pages


def main(model_dir: Path, dtype: str, memory_bytes: int) -> None:
    torch.set_num_threads(1)
    kept = [fill(model_dir, dtype, memory_bytes // 2)]
    before = private_bytes()
    kept.append(fill(model_dir, dtype, memory_bytes))
    print(private_bytes() - before, kept[-1][1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
