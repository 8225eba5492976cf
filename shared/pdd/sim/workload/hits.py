"""Independent requests whose hit rate is given: each takes that share of one long history, and ends with words of its own.

The synthetic workload of the published tables: hit = low + span * Beta(alpha, beta). Caches must hold the history before it begins;
the simulator fills them, and a live run's first requests do.
"""

from collections.abc import Iterator
from random import Random

import msgspec

from ...core.blocks import HASH_BLOCK
from .book import Book
from .draw import Draw
from .session import OneTurn, Session, Turn


class HitsLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    context_tokens: int
    outputs: Draw
    grain: int = 1  # in a simulation, tokens that one id stands for: fewer ids, rounder hits, the same mean
    low: float = 0.02
    span: float = 0.97
    alpha: float = 0.8
    beta: float = 0.082

    def __post_init__(self) -> None:
        if self.grain < 1 or self.context_tokens % self.grain:
            raise ValueError("hits: grain divides context_tokens")
        if self.context_tokens < 64 * self.grain or min(self.low, self.span) < 0 or self.low + self.span > 1:
            raise ValueError("hits: context_tokens at least 64, hit rates between 0 and 1")

    @property
    def ids(self) -> int:
        return self.context_tokens // self.grain

    def hit(self, rng: Random) -> float:
        return self.low + self.span * (rng.betavariate(self.alpha, self.beta) if self.span else 0.0)


def history(load: HitsLoad, book: Book) -> tuple[int, ...]:
    return book.passage(0, load.ids)


def standing_sessions(load: HitsLoad, book: Book, seed: int, count: int) -> Iterator[Session]:
    """Requests as an observer meets them under way: the longer their answers, the likelier, and with some part of it still to come."""
    rng = Random(f"standing {seed}")
    lengths = [load.outputs.tokens(rng) for _ in range(4096)]
    whole = history(load, book)
    for number, length in enumerate(rng.choices(lengths, weights=lengths, k=count), start=1):
        yield OneTurn(f"standing{number}", Turn(whole, max(2, round(length * rng.random()))))


def hit_sessions(load: HitsLoad, book: Book, seed: int) -> Iterator[Session]:
    rng, rounding = Random(f"hits {seed}"), Random(f"rounding {seed}")
    whole = history(load, book)
    number = 0
    while True:
        number += 1
        kept = _kept(load, load.hit(rng), rounding)
        ids = whole[:kept] + book.passage(number, load.ids - kept)
        yield OneTurn(f"s{number}", Turn(ids, load.outputs.tokens(rng)))


def _kept(load: HitsLoad, hit: float, rounding: Random) -> int:
    """Ids taken from the history. Caches hold whole blocks, so with a grain it is a whole block, up or down by chance."""
    kept = hit * load.ids
    return int(kept) if load.grain == 1 else min(load.ids, HASH_BLOCK * int(kept / HASH_BLOCK + rounding.random()))
