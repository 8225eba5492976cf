"""Independent requests whose hit rate is given: each takes that share of one long history, and ends with words of its own.

The synthetic workload of the published tables: hit = low + span * Beta(alpha, beta). Caches must hold the history before it begins;
the simulator fills them, and a live run's first requests do.
"""

from collections.abc import Iterator
from random import Random

import msgspec

from .book import Book
from .draw import Draw
from .session import OneTurn, Session, Turn


class HitsLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    context_tokens: int
    outputs: Draw
    low: float = 0.02
    span: float = 0.97
    alpha: float = 0.8
    beta: float = 0.082

    def __post_init__(self) -> None:
        if self.context_tokens < 64 or min(self.low, self.span) < 0 or self.low + self.span > 1:
            raise ValueError("hits: context_tokens at least 64, hit rates between 0 and 1")

    def hit(self, rng: Random) -> float:
        return self.low + self.span * (rng.betavariate(self.alpha, self.beta) if self.span else 0.0)


def history(load: HitsLoad, book: Book) -> tuple[int, ...]:
    return book.passage(0, load.context_tokens)


def hit_sessions(load: HitsLoad, book: Book, seed: int) -> Iterator[Session]:
    rng = Random(f"hits {seed}")
    whole = history(load, book)
    number = 0
    while True:
        number += 1
        kept = int(load.hit(rng) * load.context_tokens)
        ids = whole[:kept] + book.passage(number, load.context_tokens - kept)
        yield OneTurn(f"s{number}", Turn(ids, load.outputs.tokens(rng)))
