"""`python -m bench.engine [--quick]`: our engine beside plain transformers, and beside vLLM on the CPU where there is one.

One thread each, in processes of their own, asked the same in turn; what is compared is tokens per CPU-second, because other work on
the machine stretches the wall's seconds and hardly the processor's.
"""

import argparse
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pdd.adapters.model_files import ensure_demo_model

from .asked import Asked, Took
from .contenders import OURS, PLAIN, Contender, contenders, python_with_vllm


@dataclass(frozen=True)
class Case:
    name: str
    batch: int
    prompt: int
    outputs: int  # 1: the prefill is timed; more: the outputs after each one's first


CASES = (
    Case("decode, batch 1", 1, 128, 33),
    Case("decode, batch 8", 8, 128, 33),
    Case("decode, batch 32", 32, 128, 17),
    Case("decode, batch 8 at 1K", 8, 1024, 9),
    Case("prefill 512", 1, 512, 1),
    Case("prefill 4K", 1, 4096, 1),
)
QUICK = (Case("decode, batch 1", 1, 64, 9), Case("decode, batch 8", 8, 64, 5), Case("prefill 512", 1, 512, 1))


def main() -> None:
    asked = _arguments()
    cases = [case for case in (QUICK if asked.quick else CASES) if asked.only in case.name]
    vllm = "" if asked.quick else python_with_vllm(asked.vllm)
    with tempfile.TemporaryDirectory() as scratch:
        for name in asked.model or (["demo"] if asked.quick else ["demo", "tiny"]):
            model = model_folder(name, Path(scratch))
            for dtype in asked.dtype or (["bfloat16"] if asked.quick else ["float32", "bfloat16"]):
                print(f"\n{name} model, {dtype}\n", flush=True)
                compare(model, dtype, cases, 2 if asked.quick else asked.rounds, vllm)


def compare(model: Path, dtype: str, cases: Sequence[Case], rounds: int, vllm: str) -> None:
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    chance = random.Random(1)
    longest, widest = max(case.prompt + case.outputs for case in cases), max(case.batch for case in cases)
    with contenders(model, dtype, longest, widest, vllm) as all_of_them:
        names = [one.name for one in all_of_them]
        print("| case | " + " | ".join(f"{name}, tokens/CPU-s (wall)" for name in names), end=" | ")
        print(" | ".join(f"ours / {name}" for name in names[1:]) + " | same ids |")
        print("|---" * (2 * len(names) + 1) + "|", flush=True)
        for case in cases:
            took: dict[str, list[Took]] = {name: [] for name in names}
            for turn in range(rounds + 1):  # the first warms up
                prompts = [[chance.randrange(4, vocabulary) for _ in range(case.prompt)] for _ in range(case.batch)]
                if not turn:
                    prompts = [ids[:32] for ids in prompts[:2]]
                for one in _rotated(all_of_them, turn):
                    found = one.perform(Asked(prompts, case.outputs if turn else 2))
                    took[one.name] += [found] if turn else []
            print(_row(case, took), flush=True)


def _rotated(all_of_them: list[Contender], turn: int) -> list[Contender]:
    by = turn % len(all_of_them)
    return all_of_them[by:] + all_of_them[:by]


def _row(case: Case, took: dict[str, list[Took]]) -> str:
    """Ratios are taken round by round: median (least to most). Same ids: requests of all rounds answered as transformers does."""
    speeds = {name: [one.tokens / one.cpu_s for one in found] for name, found in took.items()}
    cells = [case.name]
    for name, found in took.items():
        cells.append(f"{median(speeds[name]):.1f} ({median(one.tokens / one.wall_s for one in found):.1f})")
    for name in [name for name in took if name != OURS]:
        ratios = sorted(ours / theirs for ours, theirs in zip(speeds[OURS], speeds[name], strict=True))
        cells.append(f"**{median(ratios):.2f}** ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    pairs = [
        (ours, plain)
        for one, other in zip(took[OURS], took[PLAIN], strict=True)
        for ours, plain in zip(one.ids, other.ids, strict=True)
    ]
    cells.append(f"{sum(ours == plain for ours, plain in pairs)} of {len(pairs)}")
    return "| " + " | ".join(cells) + " |"


def model_folder(name: str, scratch: Path) -> Path:
    if name == "demo":
        return ensure_demo_model(Path.home() / ".cache" / "pdd")
    if name == "tiny":
        from tests.models import make_tiny_model

        return make_tiny_model(scratch / "tiny")
    return Path(name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.engine", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="three cases on the demo's model, under a minute")
    parser.add_argument("--model", action="append", help="demo, tiny or a folder; may be given again")
    parser.add_argument("--dtype", action="append", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vllm", default="", metavar="PYTHON", help="a Python of another environment that has vllm")
    return parser.parse_args()


if __name__ == "__main__":
    main()
