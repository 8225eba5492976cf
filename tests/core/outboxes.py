"""An outbox with its lanes up, and a receiver that answers as the test wants. Time is what the test says it is."""

import msgspec

from pdd.core.effects import OpenTransfer
from pdd.core.events import Event
from pdd.core.ids import Epoch, Key, Peer, RequestId, Role, TransferId
from pdd.core.lane import Lane
from pdd.core.leaving import ChunkDue
from pdd.core.link import LinkEstimator
from pdd.core.outbox import Outbox
from pdd.core.pace import Pace
from pdd.core.wire import PROTOCOL, AckFrame, CloseAck, CloseFrame, Frame, Hello, Ping, Pong, WireShape

SHAPE = WireShape(2, 2, 32, "float32")  # 1 KiB a token
PER_TOKEN = SHAPE.bytes_per_token
RECEIVER = Peer("b", Role.MAIN, "md", 1)
HELLO = Hello(PROTOCOL, RECEIVER, "f")
SILENCE_S = 8.0
SMALL, BULK = 0, 1  # lanes

A, B, C = TransferId("a"), TransferId("b"), TransferId("c")


def opening(transfer: TransferId, tokens: int = 0, warm_up: bool = False) -> OpenTransfer:
    key = Key(RequestId(transfer), Epoch(1))
    return OpenTransfer(transfer, key, RECEIVER, "b:1", b"secret", "", near=False, tokens=tokens, warm_up=warm_up)


class Box(Outbox):
    """`measure` lets the line look as if it carried so much."""

    def __init__(self, streams: int = 1, credit_bytes: int = 0) -> None:
        self.estimator = LinkEstimator("b")
        super().__init__(SHAPE, Pace(self.estimator), silence_s=SILENCE_S, chunk_tokens_max=64, streams=streams)
        self.hello = msgspec.structs.replace(HELLO, credit_bytes=credit_bytes)
        for number in range(len(self.lanes)):
            self.connect(number)

    def connect(self, lane: int, now: float = 0.0) -> None:
        self.connected(self.lanes[lane], self.hello, now, 0.05)

    def next(self, lane: Lane, now: float) -> Frame | ChunkDue | None:
        due = super().next(lane, now)
        if isinstance(due, ChunkDue):
            self.crossing(lane, due, (due.stop - due.start) * PER_TOKEN)
        return due

    def drain(self, now: float = 0.0, lane: int = BULK) -> list[Frame | ChunkDue]:
        """All that may leave now."""
        found = []
        while (due := self.next(self.lanes[lane], now)) is not None:
            found.append(due)
        return found

    def hear(self, frame: Frame, now: float, lane: int = BULK) -> list[Event]:
        return self.receive(self.lanes[lane], frame, now)

    def answer(self, due: Frame | ChunkDue, now: float, lane: int = BULK) -> list[Event]:
        """As a receiver that takes everything."""
        match due:
            case ChunkDue(transfer, attempt, _, start, stop):
                return self.hear(AckFrame(transfer, attempt, start, stop), now, lane)
            case CloseFrame(transfer, attempt, _):
                return self.hear(CloseAck(transfer, attempt), now, lane)
            case Ping(number):
                return self.hear(Pong(number), now, lane)
        return []

    def drop(self, lane: int, reason: str = "lost") -> list[Event]:
        """The connection has ended."""
        return self.disconnected(self.lanes[lane], reason)

    def measure(self, bytes_per_s: float, upto: float = 0.0) -> None:
        link = self.estimator
        for step in range(20):
            at = upto - 2.0 + step * 0.1
            link.on_offered(int(bytes_per_s / 10))
            link.on_sent(int(bytes_per_s / 10), at - 0.1)
            link.on_acked(int(bytes_per_s / 10), at - 0.1 - link.rtt_s, at)


def spans(dues: list[Frame | ChunkDue], transfer: TransferId) -> list[tuple[int, int]]:
    return [(due.start, due.stop) for due in dues if isinstance(due, ChunkDue) and due.transfer == transfer]


def order(dues: list[Frame | ChunkDue]) -> list[TransferId]:
    """Whose chunks left, in turn, each stretch once."""
    found: list[TransferId] = []
    for due in dues:
        if isinstance(due, ChunkDue) and found[-1:] != [due.transfer]:
            found.append(due.transfer)
    return found
