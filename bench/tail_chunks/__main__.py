"""`python -m bench.tail_chunks`: P's throughput against the hit rate, for three ways to cut prompts into steps.

A dip is what a hit rate lacks of what the rates around it reach: half a chunk to both sides.
"""

import argparse
from collections.abc import Sequence
from statistics import mean

from pdd.core.cost import COSTS

from .composers import COMPOSERS
from .serve import Load, Served, serve

SETTINGS = (("h100-70b-tp8", 2048, 8192), ("two-cores-135m", 256, 1024))
AT_ONCE = (1, 8)
BARS = " ▁▂▃▄▅▆▇█"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.tail_chunks")
    parser.add_argument("--step", type=float, default=0.01, help="between two hit rates")
    parser.add_argument("--count", type=int, default=24, help="requests at each hit rate")
    asked = parser.parse_args()
    rates = [n * asked.step for n in range(round(0.98 / asked.step))]
    for chip, chunk, prompt in SETTINGS:
        for at_once in AT_ONCE:
            print(f"\n{chip}, chunk {chunk}, prompts of {prompt}, {at_once} at once; hit rate 0 to {rates[-1]:.2f}\n")
            load = Load(prompt, at_once, asked.count)
            print(
                "| | computed tokens/s, mean | to the naive one: least, most | worst dip | mean dip | steps | at each hit rate |"
            )
            print("|---|---|---|---|---|---|---|")
            naive: list[Served] = []
            for name, composer in COMPOSERS.items():
                served = [serve(COSTS[chip], chunk, composer, load, hit) for hit in rates]
                naive = naive or served
                print(_row(name, served, naive, max(1, round(chunk / prompt / asked.step / 2))), flush=True)


def _row(name: str, served: Sequence[Served], naive: Sequence[Served], reach: int) -> str:
    speeds = [one.tokens_per_s for one in served]
    lacks = dips(speeds, reach)
    at = max(range(len(lacks)), key=lacks.__getitem__)
    shape = "".join(BARS[max(0, min(8, round(8 * (1 - 5 * lack))))] for lack in lacks)
    ratios = [one.tokens_per_s / other.tokens_per_s for one, other in zip(served, naive, strict=True)]
    beside = f"{min(ratios):.2f}, {max(ratios):.2f}"
    steps = sum(one.steps for one in served)
    worst = f"{100 * lacks[at]:.1f} % at {at / len(lacks):.2f}"
    return f"| {name} | {mean(speeds):.0f} | {beside} | {worst} | {100 * mean(lacks):.1f} % | {steps} | `{shape}` |"


def dips(speeds: Sequence[float], reach: int) -> list[float]:
    """By how much each falls short of the lower of the best at its left and the best at its right, `reach` places far."""
    found = []
    for i, speed in enumerate(speeds):
        left, right = max(speeds[max(0, i - reach) : i + 1]), max(speeds[i : i + reach + 1])
        found.append(1 - speed / min(left, right))
    return found


if __name__ == "__main__":
    main()
