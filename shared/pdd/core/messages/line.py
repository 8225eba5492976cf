"""Between P and the router that owns a line: what waits to cross, and how fast it may."""

import msgspec

from .base import Message


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """One transfer that waits to cross. `ready_bytes` of the remaining ones are computed; nobody waits for a `warm_up`."""

    remaining_bytes: int
    ready_bytes: int
    waited_s: float
    warm_up: bool = False


class LineWants(Message, frozen=True, array_like=True, tag=True):
    """P to the router that owns the line: what waits here for one site, and how the line fares. Repeated while anything waits.

    `bulk`: the shortest first, and no more than WANTS_MAX. `small_bytes`: of small transfers, which no lease holds back.
    """

    site: str
    bytes_per_s: float  # the most it carried for us lately; 0: not known, and never what a pace let through
    delivered_bytes: int  # ever, as they crossed; differences count
    queue_s: float
    small_bytes: int
    bulk: tuple[Waiting, ...]


class LineLease(Message, frozen=True, array_like=True, tag=True):
    """For `ttl_s`, bulk to that site leaves no faster than this (0: as the line allows); after that, as the equal share."""

    site: str
    bytes_per_s: float
    share_bytes_per_s: float
    ttl_s: float


WANTS_MAX = 16
