"""How fast bulk may leave for one site, all connections together. Small transfers are never held back.

Alone, bulk takes the whole line. It stays below the measured rate while something small waits here or the line's queue is long,
and within what the line's owner has leased; when a lease ends, within an equal share, and some time later as TCP shares.
"""

import math

from .link import LinkEstimator

BESIDE_SMALL = 0.78  # of the capacity, while small transfers keep coming
FIRST_SMALL, FIRST_S = 0.5, 0.25  # and so long after the first: what is on the way already is in front of it
DRAINING = 0.94  # while the line's queue is long: it gets shorter
QUEUE_LONG = 0.25  # of the round trip, or QUEUE_LONG_S: a queue that small transfers would feel
QUEUE_LONG_S = 0.01
BURST_S = 0.01  # what was not used so long ago may still be used
PROBE_EVERY_S, PROBE_S = 7.0, 0.9  # longer than a stretch of the capacity
SHARE_S = 10.0  # how long an equal share holds after the last lease


class Pace:
    """All lanes to one site ask one pace. `free`: it never holds anything back, but for leases."""

    def __init__(self, link: LinkEstimator, *, free: bool = False) -> None:
        self.link, self._free = link, free
        self._lease = self._share = math.inf
        self._lease_until = -math.inf
        self._ahead, self._ahead_at = 0.0, 0.0  # bytes that left before their time, and when that was reckoned
        self._draining = False
        self._paced_since = 0.0
        self._quiet_at = 0.0  # the last time that nothing small waited

    def lease(self, bytes_per_s: float, share_bytes_per_s: float, until: float) -> None:
        """Up to `until` no faster than the first, then no faster than the second; infinite: as the line allows."""
        self._lease, self._share, self._lease_until = bytes_per_s, share_bytes_per_s, until

    def limit(self, now: float) -> float:
        """Bytes a second; infinite: not limited. The capacity is told, so that our own pace is not taken for the line's."""
        if not self.link.small_bytes:
            self._quiet_at = now
        if self.link.queued_bytes == self.link.small_bytes:  # its connections may carry what is small
            self.link.capacity.paced_at, self._paced_since = math.inf, now
            return math.inf
        limit = self._leased(now)
        probes = self._probes(now)
        if (capacity := self.link.capacity.bytes_per_s) and not probes and not self._free:
            if self.link.small_bytes:
                share = FIRST_SMALL if now - self._quiet_at < FIRST_S else BESIDE_SMALL
                limit = min(limit, share * capacity)
            if self._drains(now):
                limit = min(limit, DRAINING * capacity)
        self.link.capacity.paced_at = limit
        if limit == math.inf and not probes:
            self._paced_since = now
        return limit

    def _probes(self, now: float) -> bool:
        """Whoever was paced for long looks whether the line has more."""
        if now - self._paced_since > PROBE_EVERY_S + PROBE_S:
            self._paced_since = now
        return now - self._paced_since > PROBE_EVERY_S

    def _leased(self, now: float) -> float:
        if now < self._lease_until:
            return self._lease
        return self._share if now < self._lease_until + SHARE_S else math.inf

    def _drains(self, now: float) -> bool:
        """From a long queue on, until it is half as long."""
        long = max(QUEUE_LONG * self.link.rtt_s, QUEUE_LONG_S)
        self._draining = self.link.queue_s(now) > (long / 2 if self._draining else long)
        return self._draining

    def opens_in_s(self, now: float) -> float:
        """No bulk before, if nothing changes. A pace that rises shortens what a slower one made wait."""
        limit = self._reckon(now)
        return max(0.0, self._ahead / limit)

    def sent(self, count: int, now: float) -> None:
        """`count` bytes of bulk leave."""
        self._reckon(now)
        self._ahead += count

    def _reckon(self, now: float) -> float:
        limit = self.limit(now)
        if limit == math.inf:
            self._ahead = 0.0
        else:
            self._ahead = max(self._ahead - limit * (now - self._ahead_at), -BURST_S * limit)
        self._ahead_at = now
        return limit
