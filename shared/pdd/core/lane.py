"""One connection to a receiver as the sender sees it, sans I/O: what was opened and sent on it, and whether it still answers."""

from collections import deque
from dataclasses import dataclass, field

from .ids import TransferId
from .leaving import ChunkDue
from .link import LinkEstimator
from .unanswered import Item, Unanswered
from .wire import CancelFrame, Ping

PING_EVERY_S = 1.0
_NO_TRANSFER = TransferId("")


@dataclass(slots=True)
class Lane:
    """`small`: for small transfers; the other lanes are for bulk. `up` and `dialing` are the shell's to say."""

    number: int
    small: bool
    link: LinkEstimator
    up: bool = False
    dialing: bool = False
    failed: bool = False  # to connect, since any transfer was given up
    opened: dict[TransferId, int] = field(default_factory=dict)  # the attempt that this connection knows of
    claimed: ChunkDue | None = None  # goes right behind the opening that was just sent
    cancels: deque[CancelFrame] = field(default_factory=deque)
    sent: Unanswered = field(init=False)
    answered: bool = False  # anything, since it is up
    fruitless: int = 0  # connections in a row that ended before anything sent on them was answered
    answered_at: float = 0.0
    _pinged_at: float = 0.0
    _pings: int = 0

    def __post_init__(self) -> None:
        self.sent = Unanswered(self.link)

    @property
    def busy(self) -> bool:
        return bool(self.cancels or self.sent)

    def connected(self, now: float) -> None:
        self.up, self.dialing, self.failed, self.answered = True, False, False, False
        self.answered_at = self._pinged_at = now

    def disconnected(self) -> list[Item]:
        """What was sent on it and not answered: the caller decides about each."""
        self.up = self.dialing = False
        self.opened.clear()
        self.claimed = None
        self.cancels.clear()
        return self.sent.all()

    def forget(self, transfer: TransferId) -> None:
        """The transfer has ended for us; the receiver's side of this connection hears so."""
        attempt = self.opened.pop(transfer, None)
        if self.claimed and self.claimed.transfer == transfer:
            self.sent.lose(chunk_item(self.claimed))
            self.claimed = None
        if attempt is not None:
            self.cancels.append(CancelFrame(transfer, attempt))

    def ping(self, now: float) -> Ping | None:
        """Now and then, while the last one is answered."""
        if now - self._pinged_at < PING_EVERY_S or ping_item(self._pings) in self.sent:
            return None
        self._pings += 1
        self._pinged_at = now
        self.sent.add(ping_item(self._pings), 0, now)
        return Ping(self._pings)

    def heard(self, now: float) -> None:
        self.answered_at, self.answered = now, True

    def silent_s(self, now: float) -> float:
        """Something waits for an answer, and none came for so long."""
        return now - max(self.sent.oldest_at, self.answered_at) if self.sent else 0.0


def chunk_item(due: ChunkDue) -> Item:
    return Item("chunk", due.transfer, due.attempt, due.start, due.stop)


def ping_item(number: int) -> Item:
    return Item("ping", _NO_TRANSFER, number)
