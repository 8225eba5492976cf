"""Frames that were sent on one connection and want an answer, in the order of sending.

Answers come in that order: what was sent before an answered frame and has none is lost, and holds no window any more.
"""

from collections.abc import Iterator
from dataclasses import dataclass
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
    """`size`: payload bytes. `clean`: no payload was in flight, so that the answer tells the line's own round trip."""

    size: int
    at: float
    clean: bool = False


class Unanswered:
    def __init__(self, link: LinkEstimator) -> None:
        self._link = link
        self._sent: dict[Item, Sent] = {}
        self.payload_bytes = 0

    def __len__(self) -> int:
        return len(self._sent)

    def __contains__(self, item: Item) -> bool:
        return item in self._sent

    @property
    def oldest_at(self) -> float:
        return next(iter(self._sent.values())).at

    def add(self, item: Item, size: int, now: float) -> None:
        self.lose(item)  # asked for twice: the first one's answer will do for both
        self._sent[item] = Sent(size, now, clean=not self.payload_bytes)
        self.payload_bytes += size
        if size:
            self._link.on_sent(size, now)

    def answer(self, item: Item, now: float) -> Sent | None:
        """`item` did arrive. None where it is not waited for. Call `lost_before` first."""
        sent = self._sent.pop(item, None)
        if sent:
            self.payload_bytes -= sent.size
            if sent.size:
                self._link.on_acked(sent.size, sent.at, now)
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
            self.payload_bytes -= sent.size
            self._link.on_lost(sent.size)

    def clear(self) -> None:
        for item in list(self._sent):
            self.lose(item)
