"""One direction of a line: bytes leave at a rate, in order of asking, whatever connection they belong to."""

PIECE_S = 0.005  # a piece takes the line about so long, so that connections share it finely
PIECE_BYTES = (1 << 10, 64 << 10)


class Direction:
    """Times are the caller's. `rate` in bytes per second; 0: no limit."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._busy_until = 0.0

    def reserve(self, count: int, now: float) -> float:
        """When the last of `count` bytes has left, behind all that was reserved before."""
        if not self.rate:
            return now
        self._busy_until = max(now, self._busy_until) + count / self.rate
        return self._busy_until

    def backlog_s(self, now: float) -> float:
        """Seconds of reserved bytes that have not left."""
        return max(0.0, self._busy_until - now) if self.rate else 0.0

    def change_rate(self, rate: float, now: float) -> None:
        """What is reserved and has not left leaves at the new rate, as far as later reservations go."""
        if self.rate and rate:
            self._busy_until = now + self.backlog_s(now) * self.rate / rate
        self.rate = rate

    @property
    def piece_bytes(self) -> int:
        lowest, highest = PIECE_BYTES
        return int(min(max(self.rate * PIECE_S, lowest), highest)) if self.rate else highest
