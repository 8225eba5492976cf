"""What the way to one site can carry, measured from what was sent and answered, never configured: rate, round trip, queue, loss.

The rate counts answered bytes over the seconds in which the line was the limit: from the earliest moment the first byte could
have been answered, or from the last answer, to this answer. Waiting for prefill, or for a round trip, is not the line's time.
Only the receiver's own answers count: what the kernel has acknowledged may stand in a proxy on the way (docs/decisions).
"""

import math
from collections import deque

from .capacity import Capacity
from .messages import LineState

MEMORY_S = 2.0  # of busy time: older answers fade
REPORT_EVERY_S = 0.25
ROUND_TRIPS_KEPT = 4
QUEUE_MEMORY_S = 1.0  # a queue nobody has measured for so long is none

CHUNK_S = 0.1  # a chunk should take the line about so long, so that small transfers come between
CHUNK_BYTES_MIN = 16 << 10
CHUNK_BYTES_MAX = 2 << 20
CHUNK_BYTES_FIRST = 128 << 10  # until something is measured
CHUNK_BYTES_SMALL = 128 << 10  # of small transfers
WINDOW_BYTES_MAX = 64 << 20
SMALL_PIPES = 1.5

SMALL_S = 0.1  # a transfer that takes the line no longer than this is small
SMALL_BYTES = (64 << 10, 8 << 20)  # whatever the line


class LinkEstimator:
    """All connections to one site tell one estimator: they share the line."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.queued_bytes = 0  # offered and not answered
        self.small_bytes = 0  # the part of it that belongs to small transfers
        self.inflight_bytes = 0  # sent and not answered
        self.delivered_bytes = 0  # ever, as they crossed
        self.rtt_s = 0.0
        self.capacity = Capacity()
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS_KEPT)
        self._bytes = self._seconds = 0.0  # faded sums
        self._answered_at = -math.inf
        self._busy_since = 0.0
        self._queue_s, self._queue_at = 0.0, -math.inf
        self._segments = [0, 0]  # sent, sent again; faded by halves
        self._reported_at = -math.inf
        self._reported_queue = 0

    # -- what happens -------------------------------------------------------------------------------------------------

    def on_offered(self, count: int, small: bool = False) -> None:
        self.queued_bytes += count
        self.small_bytes += count * small

    def on_withdrawn(self, count: int, small: bool = False) -> None:
        """Offered bytes that will not be sent."""
        self.on_offered(-count, small)

    def on_sent(self, count: int, now: float) -> None:
        if not self.inflight_bytes:
            self._busy_since = now
        self.inflight_bytes += count

    def on_acked(self, count: int, sent_at: float, now: float, small: bool = False, crossed: int | None = None) -> None:
        """`crossed`: the bytes that were on the line for these `count`, where they were packed."""
        crossed = count if crossed is None else crossed
        self.delivered_bytes += crossed
        if not self.rtt_s or now - sent_at < self.rtt_s:
            self.on_round_trip(now - sent_at)  # an answer's delay bounds the round trip from above, and tells no more
        else:
            span = now - max(self._answered_at, sent_at + self.rtt_s)
            faded = math.exp(-span / MEMORY_S)
            self._bytes = self._bytes * faded + count
            self._seconds = self._seconds * faded + span
            self.capacity.carried(crossed, span)
        self._answered_at = now
        self.on_lost(count, small)

    def on_lost(self, count: int, small: bool = False) -> None:
        """Sent bytes that will not be answered."""
        self.on_resent(count)
        self.on_withdrawn(count, small)

    def on_resent(self, count: int) -> None:
        """Sent bytes whose connection ended: they wait again."""
        self.inflight_bytes -= count

    def on_round_trip(self, seconds: float) -> None:
        """Measured while nothing was in flight, so that our own queue is not in it."""
        self._round_trips.append(seconds)
        self.rtt_s = min(self._round_trips)

    def on_loaded_round_trip(self, seconds: float, now: float) -> None:
        """Measured while bytes were in flight: what is beyond the round trip is the queue."""
        self._queue_s, self._queue_at = max(0.0, seconds - self.rtt_s), now

    def on_segments(self, sent: int, again: int) -> None:
        """What the kernel sent since it was last asked, and how much of it for a second time."""
        if self._segments[0] > 1 << 16:
            self._segments = [count // 2 for count in self._segments]
        self._segments[0] += sent
        self._segments[1] += again

    # -- what follows -------------------------------------------------------------------------------------------------

    def bytes_per_s(self, now: float) -> float:
        """0 while nothing is measured. A silent line's rate falls while it is silent."""
        seconds = self._seconds + self._waiting(now)
        return self._bytes / seconds if seconds > 0 else 0.0

    def _waiting(self, now: float) -> float:
        if not self.inflight_bytes:
            return 0.0
        return max(0.0, now - max(self._answered_at, self._busy_since + self.rtt_s))

    def queue_s(self, now: float) -> float:
        """What a byte waits on the way beyond the round trip."""
        return self._queue_s if now - self._queue_at < QUEUE_MEMORY_S else 0.0

    @property
    def loss(self) -> float:
        """The share of segments that had to be sent again; 0 where the kernel does not tell."""
        sent, again = self._segments
        return again / sent if sent else 0.0

    def eta(self, count: int, now: float) -> float:
        """Seconds until `count` more bytes are answered, behind what is queued; infinite while nothing is measured."""
        rate = self.bytes_per_s(now)
        return self.rtt_s + (self.queued_bytes + count) / rate if rate else math.inf

    def _best(self, now: float) -> float:
        """What chunks and windows are sized by: a rate that was low for a moment must not keep itself low."""
        return max(self.bytes_per_s(now), self.capacity.bytes_per_s)

    def chunk_bytes(self, now: float) -> int:
        rate = self._best(now)
        return int(min(max(rate * CHUNK_S, CHUNK_BYTES_MIN), CHUNK_BYTES_MAX)) if rate else CHUNK_BYTES_FIRST

    def window_bytes(self, now: float, small: bool = False) -> int:
        """Unanswered bytes that keep the line busy and its queue short: two chunks beyond twice what the line itself holds.

        Of `small` transfers less: what is under way is past ordering.
        """
        pipe = self._best(now) * self.rtt_s
        if small:
            return int(min(SMALL_PIPES * pipe, WINDOW_BYTES_MAX)) + 2 * CHUNK_BYTES_SMALL
        return int(min(2 * pipe, WINDOW_BYTES_MAX)) + 2 * self.chunk_bytes(now)

    def small_limit(self, now: float) -> int:
        """A transfer of at most so many bytes is small."""
        lowest, highest = SMALL_BYTES
        return int(min(max(self._best(now) * SMALL_S, lowest), highest))

    def report(self, now: float) -> LineState | None:
        """The line's state, a few times a second at most, and once more when the queue has emptied."""
        emptied = self._reported_queue and not self.queued_bytes
        if now - self._reported_at < REPORT_EVERY_S and not emptied:
            return None
        self._reported_at, self._reported_queue = now, self.queued_bytes
        return LineState(self.site, self.bytes_per_s(now), self.rtt_s, self.queued_bytes, self.queue_s(now), self.loss)
