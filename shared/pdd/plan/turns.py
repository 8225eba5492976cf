"""A load played without any server: what each request brings, and how much of it an endless cache would hold. The first cut's input."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

import msgspec

from ..sim.workload import Load, Session

WORD = 7


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. `known`: tokens of its prompt that stood in this conversation's last prompt and answer (or in the preloaded history)."""

    at_s: float
    session: str
    prompt: int
    known: int
    outputs: int

    @property
    def missed(self) -> int:
        return max(1, self.prompt - self.known)


@dataclass(frozen=True, slots=True, order=True)
class _Due:
    """A session's next request. `last`: its last prompt and answer, or what caches were preloaded with."""

    at_s: float
    tie: int
    session: Session = field(compare=False)
    last: tuple[int, ...] = field(compare=False)
    answer: tuple[int, ...] = field(compare=False, default=())


def samples(load: Load, seed: int, base: Path, most: int, output_s: float = 0.05) -> list[Sample]:
    """The first `most` requests in order of time, where an output takes `output_s` and nothing else takes any."""
    grain = load.hits.grain if load.hits else 1
    found: list[Sample] = []
    tie = count()
    starts = msgspec.structs.replace(load, standing_s=0.0).timed(seed, base)
    preloaded = load.preload(seed)
    waiting: list[_Due] = []
    pending = next(starts, None)
    while len(found) < most and (waiting or pending):
        while pending and (
            len(waiting) < load.at_once if load.closed else not waiting or pending[0] <= waiting[0].at_s
        ):
            heappush(waiting, _Due(max(pending[0], found[-1].at_s if found else 0.0), next(tie), pending[1], preloaded))
            pending = next(starts, None)
        due = heappop(waiting)
        turn = due.session.next(due.answer)
        if turn is None:
            continue
        found.append(
            Sample(due.at_s, due.session.name, len(turn.ids) * grain, _common(due.last, turn.ids) * grain, turn.outputs)
        )
        ended, answer = due.at_s + turn.outputs * output_s, (WORD,) * turn.outputs
        for child in turn.children:
            heappush(waiting, _Due(ended, next(tie), child, ()))
        heappush(waiting, _Due(ended + due.session.think_s, next(tie), due.session, turn.ids + answer, answer))
    return found


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the common prefix: by halves, so that long equal parts are compared by the interpreter and not here."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def cache_curve(found: Sequence[Sample], sizes: Sequence[float]) -> list[float]:
    """Hit rates, by tokens, of one cache of each size that drops the conversation used longest ago."""
    hits = [0] * len(sizes)
    distances = list(_distances(found))
    for sample, distance in zip(found, distances, strict=True):
        for i, size in enumerate(sizes):
            if distance + sample.prompt <= size:
                hits[i] += sample.known
    total = sum(sample.prompt for sample in found) or 1
    return [hit / total for hit in hits]


def _distances(found: Sequence[Sample]) -> Iterator[float]:
    """For each request the tokens that other conversations have touched since this one's last; infinite at its first."""
    order: dict[str, int] = {}  # conversation -> tokens, least recently used first
    for sample in found:
        if sample.session in order:
            others, seen = 0.0, False
            for name, tokens in order.items():
                if seen:
                    others += tokens
                seen = seen or name == sample.session
            yield others
            del order[sample.session]
        else:
            yield float("inf")
        order[sample.session] = sample.prompt + sample.outputs
