"""What workers hold for one router's requests, and the releases they owe an answer to. A release is repeated until answered."""

from dataclasses import dataclass

from ..effects import Effect, Send
from ..ids import Epoch, Peer, RequestId
from ..messages import Release
from ..timeouts import TimeOuts


@dataclass(slots=True)
class Releasing:
    epoch: Epoch
    until: float  # its lease has ended by then, answered or not
    sent_at: float


class Holdings:
    def __init__(self, timeouts: TimeOuts) -> None:
        self.timeouts = timeouts
        self.releasing: dict[tuple[RequestId, Peer], Releasing] = {}
        self._accepted: dict[Peer, dict[RequestId, None]] = {}

    def __bool__(self) -> bool:
        return bool(self.releasing)

    def accepted(self, request: RequestId, peer: Peer) -> None:
        self._accepted.setdefault(peer, {})[request] = None

    def of(self, peer: Peer) -> list[RequestId]:
        """Requests that this life of a worker accepted and was not told to release."""
        return list(self._accepted.get(peer, ()))

    def release(self, request: RequestId, peer: Peer, epoch: Epoch, now: float) -> Send:
        held = self._accepted.get(peer, {})
        held.pop(request, None)
        if not held:
            self._accepted.pop(peer, None)
        self.releasing[request, peer] = Releasing(epoch, now + self.timeouts.lease_s, now)
        return Send(peer, Release(request, epoch))

    def released(self, request: RequestId, peer: Peer, epoch: Epoch) -> None:
        waiting = self.releasing.get((request, peer))
        if waiting and waiting.epoch <= epoch:
            del self.releasing[request, peer]

    def tick(self, now: float) -> list[Effect]:
        """The repeats that are due."""
        due: list[Effect] = []
        for (request, peer), waiting in list(self.releasing.items()):
            if now > waiting.until:
                del self.releasing[request, peer]
            elif now - waiting.sent_at >= self.timeouts.retry_s:
                waiting.sent_at = now
                due.append(Send(peer, Release(request, waiting.epoch)))
        return due
