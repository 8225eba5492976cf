"""One record for each request, as its client saw it. Times are seconds from the run's start."""

from dataclasses import dataclass, field
from math import exp, floor, log


@dataclass(slots=True)
class Record:
    """`intended_s`: when it should have been sent; an open loop's delays count from there. `error`: why there is no whole answer."""

    session: str
    turn: int
    intended_s: float
    sent_s: float
    prompt: int = 0
    outputs: int = 0
    first_s: float | None = None
    second_s: float | None = None
    last_s: float | None = None
    gap_s: float = 0.0  # the longest wait between two outputs
    hit: dict[str, int] = field(default_factory=dict)  # cached prompt tokens by role, where the server tells
    route: str = ""
    shares: dict[str, int] = field(default_factory=dict)  # outputs by role
    wan_bytes: int = 0
    wan_s: float = 0.0  # first byte to last answer
    near_bytes: int = 0
    epochs: int = 1
    error: str = ""

    @property
    def ttft_s(self) -> float | None:
        return None if self.first_s is None else self.first_s - self.intended_s

    @property
    def second_token_s(self) -> float | None:
        return None if self.second_s is None else self.second_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output after the second: the wait for the hand-over of the KV is not in it."""
        if self.second_s is None or self.last_s is None or self.outputs < 3:
            return None
        return (self.last_s - self.second_s) / (self.outputs - 2)

    @property
    def e2e_s(self) -> float | None:
        return None if self.last_s is None or self.error else self.last_s - self.intended_s


GRAIN = log(1.01)  # buckets of one percent


@dataclass(slots=True)
class Gaps:
    """Waits between outputs, too many to keep: counted in buckets of one percent."""

    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def add(self, seconds: float, times: int = 1) -> None:
        bucket = floor(log(max(seconds, 1e-6)) / GRAIN)
        self.counts[bucket] = self.counts.get(bucket, 0) + times
        self.total += times

    def percentile(self, share: float) -> float | None:
        """None where there are none."""
        wanted = share * self.total
        for bucket in sorted(self.counts):
            wanted -= self.counts[bucket]
            if wanted <= 0:
                return exp((bucket + 0.5) * GRAIN)
        return None


@dataclass(slots=True)
class Run:
    """All that a run brought. `sessions`: (name, begin, end, seconds of thinking). Records before `warmup_s` are kept, not counted."""

    title: str
    records: list[Record] = field(default_factory=list)
    gaps: Gaps = field(default_factory=Gaps)
    sessions: list[tuple[str, float, float, float]] = field(default_factory=list)
    warmup_s: float = 0.0
    seconds: float = 0.0
    facts: dict[str, str | int | float] = field(default_factory=dict)  # what was run: target or fleet, seed, versions
