"""The most that a line has lately carried, from stretches in which it was busy throughout. What our own pace held back says nothing.

A mean is of no use to set a pace by: every pace below the line would lower the next. The best of the last stretches is.
"""

import math
from collections import deque

STRETCH_S = 0.4
KEPT = 25  # stretches, of those that count
NOT_HELD = 0.8  # slower than this part of our pace: it was the line that held us back


class Capacity:
    """`paced_at`: the rate we hold ourselves to now; infinite: none."""

    def __init__(self, stretch_s: float = STRETCH_S) -> None:
        self.paced_at = math.inf
        self._stretch_s = stretch_s
        self._rates: deque[float] = deque(maxlen=KEPT)
        self._since: float | None = None
        self._bytes = 0
        self._pace = math.inf  # the lowest of this stretch

    @property
    def bytes_per_s(self) -> float:
        """0 until one stretch is over."""
        return max(self._rates, default=0.0)

    def idle(self) -> None:
        """Nothing is under way: the stretch that was begun does not count."""
        self._since = None

    def delivered(self, count: int, now: float) -> None:
        """`count` bytes have arrived there since the last call; the line was busy all the time."""
        if self._since is None:
            self._since, self._bytes, self._pace = now, 0, self.paced_at
            return
        self._bytes += count
        self._pace = min(self._pace, self.paced_at)
        if now - self._since < self._stretch_s:
            return
        rate = self._bytes / (now - self._since)
        if rate > self.bytes_per_s or self._pace == math.inf or rate < NOT_HELD * self._pace:
            self._rates.append(rate)
        self._since, self._bytes, self._pace = now, 0, self.paced_at
