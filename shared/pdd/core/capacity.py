"""The most that a line has lately carried, from stretches of its busy time. What our own pace held back says nothing.

A mean is of no use to set a pace by: every pace below the line would lower the next. The best of the last stretches is. So a
stretch must be long: what is counted comes in lumps, and the best is the one that the lumps have flattered most.
"""

import math
from collections import deque

STRETCH_S = 0.8
LUMPS = 12  # a stretch has at least so many of its largest
KEPT = 12  # stretches, of those that count
NOT_HELD = 0.8  # slower than this part of our pace: it was the line that held us back


class Capacity:
    """`paced_at`: the rate we hold ourselves to now; infinite: none."""

    def __init__(self, stretch_s: float = STRETCH_S) -> None:
        self.paced_at = math.inf
        self._stretch_s = stretch_s
        self._rates: deque[float] = deque(maxlen=KEPT)
        self._begin()

    def _begin(self) -> None:
        self._bytes, self._seconds, self._lump = 0, 0.0, 0
        self._pace = math.inf  # the lowest of this stretch

    @property
    def bytes_per_s(self) -> float:
        """0 until one stretch is over."""
        return max(self._rates, default=0.0)

    def carried(self, count: int, seconds: float) -> None:
        """The line was busy so long, and no longer, with the last `count` bytes."""
        self._bytes += count
        self._seconds += seconds
        self._lump = max(self._lump, count)
        self._pace = min(self._pace, self.paced_at)
        if self._seconds < self._stretch_s or self._bytes < LUMPS * self._lump:
            return
        rate, held = self._bytes / self._seconds, self._pace < math.inf
        if not held or 0 < self.bytes_per_s < rate or rate < NOT_HELD * self._pace:
            self._rates.append(rate)
        self._begin()
