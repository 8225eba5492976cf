"""Revenue per unit of compute against hit rate, and where the tub's bottom dips: tail chunks.

Cached tokens are billed at a share of the price while attention's cost falls only as 1 - h^2, so revenue per compute is high at both
ends and low between. A prompt's last chunk that is nearly empty still takes a whole step; the product's schedule merges and shares
such tails.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.cost import EngineCost
from ..core.schedule import slice_tokens

TAILS = ("own step", "merged", "merged and shared")


@dataclass(frozen=True, slots=True)
class Tub:
    """One worker's prefill of prompts of `context` tokens in chunks."""

    cost: EngineCost
    context: int
    chunk_tokens: int

    def seconds(self, hit: float, tails: str) -> float:
        """Of the worker, for one prompt. `own step`: chunks of full size and a tail alone; `merged`: no tail under a quarter chunk;
        `merged and shared`: others' tokens fill what a step has left, so that a prompt pays its part of it.
        """
        start = min(self.context - 1, int(hit * self.context))
        total = 0.0
        while start < self.context:
            left = self.context - start
            taken = (
                min(left, self.chunk_tokens)
                if tails == "own step"
                else slice_tokens(left, self.chunk_tokens, self.chunk_tokens)
            )
            total += self._step(start, taken, shared=tails == "merged and shared")
            start += taken
        return total

    def _step(self, start: int, taken: int, *, shared: bool) -> float:
        pairs = taken * (2 * start + taken + 1) / 2
        alone = self.cost.seconds_of(taken, pairs, 0, 0)
        if not shared or taken >= self.chunk_tokens:
            return alone
        full = self.cost.seconds_of(self.chunk_tokens, 0.0, 0, 0)
        return full * taken / self.chunk_tokens + pairs * self.cost.attention_s_per_pair


def revenue(hit: float, cached_price: float) -> float:
    """Of one prompt token, where a missed one brings 1."""
    return (1 - hit) + cached_price * hit


def tub(given: Tub, hits: Sequence[float], cached_price: float, tails: str) -> list[tuple[float, float]]:
    """(hit rate, revenue per compute), 1 at no hits at all."""
    base = revenue(0.0, cached_price) / given.seconds(0.0, tails)
    return [(hit, revenue(hit, cached_price) / given.seconds(hit, tails) / base) for hit in hits]


def published(hits: Sequence[float]) -> list[tuple[float, float]]:
    """The arithmetic of the published figure: price (1-h) + 0.1 h, cost 0.2 (1-h) + 0.8 (1-h^2) + 0.05, both as parts of h = 0."""
    return [(h, ((1 - h) + 0.1 * h) / ((0.2 * (1 - h) + 0.8 * (1 - h * h) + 0.05) / 1.05)) for h in hits]


def bottom(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return min(points, key=lambda point: point[1])
