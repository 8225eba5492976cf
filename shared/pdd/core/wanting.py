"""What one process wants of the line to one site: told at once when it changes for others, and again while anything waits."""

import math
from collections.abc import Iterable

from .departures import Departures
from .link import LinkEstimator
from .messages import WANTS_MAX, LineWants, Waiting

REPEAT_S = 0.25
CHANGE_S = 0.05  # changes are not told more often


class Wanting:
    """All outboxes to the site have one of these."""

    def __init__(self, link: LinkEstimator) -> None:
        self._link = link
        self._told_at = -math.inf
        self._told: tuple[bool, bool] = (False, False)

    def due(self, boxes: Iterable[Departures], now: float) -> LineWants | None:
        """What to tell the line's owner now, if anything."""
        small, any_bulk = bool(self._link.small_bytes), self._link.queued_bytes > self._link.small_bytes
        since = now - self._told_at
        if (small, any_bulk) == self._told:
            if not (small or any_bulk) or since < REPEAT_S:
                return None
        elif since < CHANGE_S and (small or any_bulk):
            return None  # an end is told at once: nobody may ask again
        self._told, self._told_at = (small, any_bulk), now
        bulk = sorted((one for box in boxes for one in box.waiting(now)), key=lambda one: one.remaining_bytes)
        return LineWants(
            self._link.site,
            self._link.capacity.bytes_per_s,
            self._link.delivered_bytes,
            self._link.queue_s(now),
            self._link.small_bytes,
            shortest(bulk),
        )


def shortest(bulk: list[Waiting]) -> tuple[Waiting, ...]:
    """The first WANTS_MAX; the last of them stands for all that follow, too."""
    if len(bulk) <= WANTS_MAX:
        return tuple(bulk)
    rest = bulk[WANTS_MAX - 1 :]
    last = Waiting(
        rest[0].remaining_bytes,
        sum(one.ready_bytes for one in rest),
        max(one.waited_s for one in rest),
        all(one.warm_up for one in rest),
    )
    return (*bulk[: WANTS_MAX - 1], last)
