"""The line study's load: 80 requests a second of 64K tokens each, 90 % of them hit in the mean, skewed or even.

After arXiv 2609.13161v1: DeepSeek-V4-Pro, 28.5 MB of missed KV a request in the mean, which is 91 % of a 20 Gbps line.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

CONTEXT_TOKENS = 65_536
BYTES_PER_TOKEN = 28.5e6 / (0.10 * CONTEXT_TOKENS)  # 4.25 KiB
REQUESTS_PER_S = 80.0
LINE_BYTES_PER_S = 20e9 / 8
MEAN_MISSED = 0.10
SKEWED = (0.01, 0.98, 0.1)  # least and most missed, and Beta's first parameter: 72 % hit above 95 %
EVEN = (0.05, 0.15)

KINDS = ("skewed", "even")


class Asked(NamedTuple):
    at: float
    size: float


def load(kind: str, seconds: float, seed: int = 1, scale: float = 1.0) -> Iterator[Asked]:
    """Poisson arrivals. `scale` divides the sizes (the line's rate should be divided likewise)."""
    rng, now = random.Random(f"{kind} {seed}"), 0.0
    while (now := now + rng.expovariate(REQUESTS_PER_S)) < seconds:
        yield Asked(now, missed(kind, rng) * CONTEXT_TOKENS * BYTES_PER_TOKEN / scale)


def missed(kind: str, rng: random.Random) -> float:
    if kind == "even":
        return rng.uniform(*EVEN)
    least, most, first = SKEWED
    mean = (MEAN_MISSED - least) / (most - least)
    return least + (most - least) * rng.betavariate(first, first * (1 - mean) / mean)


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]
