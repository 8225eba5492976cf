"""When sessions begin in an open loop: gaps of one mean, more or less bursty."""

from collections.abc import Iterator
from random import Random


def arrivals(rate_per_s: float, burst: float, rng: Random) -> Iterator[float]:
    """Seconds from the start, without end. `burst`: the gaps' coefficient of variation; 1 is Poisson, 0 a metronome (Gamma between)."""
    now = 0.0
    while True:
        if burst == 0:
            now += 1 / rate_per_s
        elif burst == 1:
            now += rng.expovariate(rate_per_s)
        else:
            shape = 1 / burst**2
            now += rng.gammavariate(shape, 1 / (rate_per_s * shape))
        yield now
