"""Storms by seed, as what can be sent between processes: what came of one, and the smallest schedule that still breaks the law."""

import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from ..core.ids import RequestId
from .coverage import Coverage
from .laws import Violation
from .storm import Storm
from .story import Story

LAST_LINES = 60


@dataclass(frozen=True, slots=True)
class Outcome:
    """`law` is empty where all held. `entries`: the schedule by number."""

    seed: int
    law: str = ""
    text: str = ""
    counts: Counter[str] = field(default_factory=Counter)
    coverage: Coverage = field(default_factory=Coverage)
    entries: dict[int, str] = field(default_factory=dict)
    story: tuple[str, ...] = ()


def outcome(seed: int, without: frozenset[int] = frozenset()) -> Outcome:
    storm = Storm(seed, without)
    try:
        counts, law, text = storm.run(), "", ""
    except Violation as violation:
        counts, law, text = storm.counts, violation.law, str(violation)
    return Outcome(seed, law, text, counts, storm.coverage, storm.entries, tuple(storm.story))


def outcomes(seeds: range, jobs: int) -> Iterator[Outcome]:
    """In the order of the seeds, from `jobs` processes."""
    if jobs == 1:
        yield from map(outcome, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(outcome, seeds, chunksize=8)


def shrunk(failed: Outcome) -> tuple[Outcome, frozenset[int]]:
    """Leaves out one entry after the other while the same law still breaks. Also returns what was left out."""
    without: frozenset[int] = frozenset()
    while True:
        for number in failed.entries:
            shorter = outcome(failed.seed, without | {number})
            if shorter.law == failed.law:
                failed, without = shorter, without | {number}
                break
        else:
            return failed, without


def told(failed: Outcome, without: frozenset[int]) -> str:
    """The life of the first request that the violation names: its last lines, faults among them."""
    named = re.search(r"\bq\d+", failed.text)
    if named is None:
        return "".join(f"{line}\n" for line in failed.story)
    story = Story(RequestId(named[0]))
    storm = Storm(failed.seed, without, story.check, story.tell)
    try:
        storm.run()
    except Violation as violation:
        story.tell(storm.house.world.now(), str(violation))
    return "".join(story.text().splitlines(keepends=True)[-LAST_LINES:])
