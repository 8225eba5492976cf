"""Frames that were sent on one connection and want an answer, in the order of sending.

Answers come in that order: what was sent before an answered frame and has none is lost, and holds no window any more.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from .ids import TransferId
from .link import LinkEstimator


class Item(NamedTuple):
    """What an answer names. A ping has its number for an attempt."""

    kind: str  # chunk | close | ping
    transfer: TransferId
    attempt: int
    start: int = 0
    stop: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """`size`: payload bytes; `crossing`: as they are on the line. `clean`: none were in flight, so that the answer tells the
    line's own round trip."""

    size: int
    at: float
    small: bool = False
    clean: bool = False
    crossing: int | None = None


class Unanswered:
    def __init__(self, link: LinkEstimator) -> None:
        self._link = link
        self._sent: dict[Item, Sent] = {}
        self.payload_bytes = 0
        self.small_bytes = 0  # the part of it that belongs to small transfers

    def __len__(self) -> int:
        return len(self._sent)

    def __contains__(self, item: Item) -> bool:
        return item in self._sent

    @property
    def oldest_at(self) -> float:
        return next(iter(self._sent.values())).at

    def bytes_of(self, transfer: TransferId, attempt: int) -> int:
        """Payload of this attempt that has no answer."""
        return sum(sent.size for one, sent in self._sent.items() if one[1:3] == (transfer, attempt))

    def add(self, item: Item, size: int, now: float, small: bool = False) -> None:
        self.lose(item)  # asked for twice: the first one's answer will do for both
        self._sent[item] = Sent(size, now, small, clean=not self._link.inflight_bytes)
        self._count(size, small)
        if size:
            self._link.on_sent(size, now)

    def crossing(self, item: Item, size: int) -> None:
        """It leaves in so many bytes."""
        if sent := self._sent.get(item):
            self._sent[item] = replace(sent, crossing=size)

    def answer(self, item: Item, now: float) -> Sent | None:
        """`item` did arrive. None where it is not waited for. Call `lost_before` first."""
        sent = self._sent.pop(item, None)
        if sent and sent.size:
            self._count(-sent.size, sent.small)
            self._link.on_acked(sent.size, sent.at, now, sent.small, sent.crossing)
        return sent

    def lost_before(self, item: Item) -> Iterator[Item]:
        """Take out, one by one, what was sent before `item` and not answered."""
        if item not in self._sent:
            return
        while (first := next(iter(self._sent))) != item:
            self.lose(first)
            yield first

    def lose(self, item: Item) -> None:
        sent = self._sent.pop(item, None)
        if sent and sent.size:
            self._count(-sent.size, sent.small)
            self._link.on_lost(sent.size, sent.small)

    def take_back(self, item: Item) -> None:
        """It has to be sent again: it stays queued."""
        sent = self._sent.pop(item, None)
        if sent and sent.size:
            self._count(-sent.size, sent.small)
            self._link.on_resent(sent.size)

    def _count(self, size: int, small: bool) -> None:
        self.payload_bytes += size
        self.small_bytes += size * small

    def all(self) -> list[Item]:
        return list(self._sent)
