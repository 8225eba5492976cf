"""Random lengths and times as a scenario writes them."""

from bisect import bisect_right
from itertools import pairwise
from math import exp, inf, log
from random import Random

import msgspec


class Draw(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lognormal with this median and sigma, or by `quantiles` ([share, value], ascending, straight between), cut to [least, most]."""

    median: float = 0.0
    sigma: float = 0.0
    least: float = 0.0
    most: float = inf
    quantiles: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if bool(self.quantiles) == (self.median > 0):
            raise ValueError("give either a median above 0 or quantiles")
        shares = [share for share, _ in self.quantiles]
        if self.quantiles and (shares != sorted(set(shares)) or shares[0] != 0 or shares[-1] != 1):
            raise ValueError("quantiles ascend from a share of 0 to a share of 1")

    def draw(self, rng: Random) -> float:
        value = self._by_quantile(rng.random()) if self.quantiles else self._lognormal(rng)
        return min(max(value, self.least), self.most)

    def tokens(self, rng: Random) -> int:
        return max(1, round(self.draw(rng)))

    def _lognormal(self, rng: Random) -> float:
        return rng.lognormvariate(log(self.median), self.sigma) if self.sigma else self.median

    def _by_quantile(self, share: float) -> float:
        at = min(bisect_right(self.quantiles, share, key=lambda point: point[0]), len(self.quantiles) - 1)
        (left, low), (right, high) = self.quantiles[at - 1], self.quantiles[at]
        return low + (high - low) * (share - left) / (right - left)

    def mean(self) -> float:
        """Before the cut."""
        if not self.quantiles:
            return self.median * exp(self.sigma**2 / 2)
        points = self.quantiles
        return sum((b - a) * (x + y) / 2 for (a, x), (b, y) in pairwise(points))
