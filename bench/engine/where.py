"""`python -m bench.engine.where`: where a step's time goes in our engine, part by part, for the same cases as bench.engine.

Parts are timed around their calls, all on the engine's one thread; `between` is what the layers do outside of them (norms, rotary
positions, activations, Python), `loop` what lies between two steps: composing, events, two thread switches.
"""

import argparse
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from pdd.adapters.engine_torch import attention, create_torch, runner
from pdd.adapters.engine_torch.attention import PagedAttention
from pdd.adapters.engine_torch.linear import Linear
from pdd.adapters.engine_torch.model import PagedModel
from pdd.core.effects import OpenSequence, Speak
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.sampling import Sampling

from .__main__ import CASES, QUICK, Case, model_folder
from .play_pdd import Loop

PARTS: dict[str, tuple[Any, str]] = {
    "matrices": (Linear, "__call__"),
    "attention": (PagedAttention, "__call__"),
    "KV written": (PagedAttention, "write"),
    "tables": (PagedAttention, "lay"),
    "sampling": (runner, "sample_rows"),
    "model": (PagedModel, "logits"),  # the parts above it, and what is between
    "step": (runner.TorchRunner, "_step"),
}
SHOWN = ("matrices", "attention", "KV written", "between", "tables", "sampling", "loop")


@contextmanager
def timed(seconds: dict[str, float]) -> Iterator[None]:
    """Adds up, by the names of PARTS, how long their calls take."""

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            began = perf_counter()
            try:
                return function(*args, **named)
            finally:
                seconds[name] += perf_counter() - began

        return call

    before = {name: getattr(owner, method) for name, (owner, method) in PARTS.items()}
    for name, (owner, method) in PARTS.items():
        setattr(owner, method, watched(name, before[name]))
    try:
        yield
    finally:
        for name, (owner, method) in PARTS.items():
            setattr(owner, method, before[name])


def play(model: Path, dtype: str, case: Case) -> dict[str, float]:
    """Seconds of each part, and of the whole, from the first output on (a prefill: up to it)."""
    loop, chance = Loop(), random.Random(1)
    engine = create_torch(
        model, fingerprint="", sink=loop.sink, clock=loop, post=loop.post,
        dtype=dtype, pages=(case.prompt + case.outputs + 64) // 16 * case.batch + 64, max_sequences=case.batch,
    )  # fmt: skip
    keys = [Key(RequestId(str(number)), Epoch(1)) for number in range(case.batch)]
    loop.written = {key.request: [] for key in keys}
    seconds = dict.fromkeys(PARTS, 0.0)
    with timed(seconds):
        began = perf_counter()
        for key in keys:
            ids = tuple(chance.randrange(4, 400) for _ in range(case.prompt))
            engine.open(OpenSequence(key, ids, len(ids), Sampling(case.outputs), "", True))
            engine.speak(Speak(key, 1))
        loop.run_until_each_has(1)
        if case.outputs > 1:
            seconds.update(dict.fromkeys(PARTS, 0.0))
            began = perf_counter()
            for key in keys:
                engine.speak(Speak(key, None))
            loop.run_until_each_has(case.outputs)
        whole = perf_counter() - began
    inside = seconds["matrices"] + seconds["attention"] + seconds["KV written"]
    return seconds | {"between": seconds["model"] - inside, "loop": whole - seconds["step"], "whole": whole}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.engine.where", description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", default="demo", help="demo, or a folder")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--plain", action="store_true", help="attention without compiled loops")
    asked = parser.parse_args()
    if asked.plain:
        attention._made = lambda make: None
    model = model_folder(asked.model, Path())
    print("| case | ms | " + " | ".join(SHOWN) + " |")
    print("|---" * (len(SHOWN) + 2) + "|", flush=True)
    for case in (case for case in (QUICK if asked.quick else CASES) if asked.only in case.name):
        found = play(model, asked.dtype, case)
        steps = case.outputs - 1 or 1
        shares = " | ".join(f"{found[name] / found['whole']:.1%}" for name in SHOWN)
        print(f"| {case.name} | {1000 * found['whole'] / steps:.1f} | {shares} |", flush=True)


if __name__ == "__main__":
    main()
