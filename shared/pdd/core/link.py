"""What the way to one site can carry, measured from what was sent and answered, never configured.

The rate counts answered bytes over the seconds in which the line was the limit: from the earliest moment the first byte could
have been answered, or from the last answer, to this answer. Waiting for prefill, or for a round trip, is not the line's time.
"""

import math
from collections import deque

from .messages import LineState

MEMORY_S = 2.0  # of busy time: older answers fade
REPORT_EVERY_S = 0.25
ROUND_TRIPS_KEPT = 4

CHUNK_S = 0.1  # a chunk should take the line about so long, so that small transfers come between
CHUNK_BYTES_MIN = 64 << 10
CHUNK_BYTES_MAX = 2 << 20
CHUNK_BYTES_FIRST = 128 << 10  # until something is measured
WINDOW_BYTES_MAX = 64 << 20


class LinkEstimator:
    """All connections to one site tell one estimator: they share the line."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.queued_bytes = 0  # offered and not answered
        self.inflight_bytes = 0  # sent and not answered
        self.rtt_s = 0.0
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS_KEPT)
        self._bytes = self._seconds = 0.0  # faded sums
        self._answered_at = -math.inf
        self._busy_since = 0.0
        self._reported_at = -math.inf
        self._reported_queue = 0

    # -- what happens -------------------------------------------------------------------------------------------------

    def on_offered(self, count: int) -> None:
        self.queued_bytes += count

    def on_withdrawn(self, count: int) -> None:
        """Offered bytes that will not be sent."""
        self.queued_bytes -= count

    def on_sent(self, count: int, now: float) -> None:
        if not self.inflight_bytes:
            self._busy_since = now
        self.inflight_bytes += count

    def on_acked(self, count: int, sent_at: float, now: float) -> None:
        if not self.rtt_s or now - sent_at < self.rtt_s:
            self.on_round_trip(now - sent_at)  # an answer's delay bounds the round trip from above, and tells no more
        else:
            span = now - max(self._answered_at, sent_at + self.rtt_s)
            faded = math.exp(-span / MEMORY_S)
            self._bytes = self._bytes * faded + count
            self._seconds = self._seconds * faded + span
        self._answered_at = now
        self.on_lost(count)

    def on_lost(self, count: int) -> None:
        """Sent bytes that will not be answered."""
        self.inflight_bytes -= count
        self.queued_bytes -= count

    def on_round_trip(self, seconds: float) -> None:
        """Measured while nothing was in flight, so that our own queue is not in it."""
        self._round_trips.append(seconds)
        self.rtt_s = min(self._round_trips)

    # -- what follows -------------------------------------------------------------------------------------------------

    def bytes_per_s(self, now: float) -> float:
        """0 while nothing is measured. A silent line's rate falls while it is silent."""
        seconds = self._seconds + self._waiting(now)
        return self._bytes / seconds if seconds > 0 else 0.0

    def _waiting(self, now: float) -> float:
        if not self.inflight_bytes:
            return 0.0
        return max(0.0, now - max(self._answered_at, self._busy_since + self.rtt_s))

    def eta(self, count: int, now: float) -> float:
        """Seconds until `count` more bytes are answered, behind what is queued; infinite while nothing is measured."""
        rate = self.bytes_per_s(now)
        return self.rtt_s + (self.queued_bytes + count) / rate if rate else math.inf

    def chunk_bytes(self, now: float) -> int:
        rate = self.bytes_per_s(now)
        return int(min(max(rate * CHUNK_S, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)) if rate else CHUNK_BYTES_FIRST

    def window_bytes(self, now: float) -> int:
        """Unanswered bytes that keep the line busy and its queue short: two chunks beyond twice what the line itself holds."""
        pipe = 2 * self.bytes_per_s(now) * self.rtt_s
        return int(min(pipe, WINDOW_BYTES_MAX)) + 2 * self.chunk_bytes(now)

    def report(self, now: float) -> LineState | None:
        """The line's state, a few times a second at most, and once more when the queue has emptied."""
        emptied = self._reported_queue and not self.queued_bytes
        if now - self._reported_at < REPORT_EVERY_S and not emptied:
            return None
        self._reported_at, self._reported_queue = now, self.queued_bytes
        return LineState(self.site, self.bytes_per_s(now), self.rtt_s, self.queued_bytes)
