"""The KV link of a simulated fleet: bytes are counted, not carried. Tickets, staging, acknowledgements and the line's estimator
are the product's; the line itself is `line.SimLine`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..core.effects import (
    CancelTransfer,
    CloseTransfer,
    DropKv,
    ExpectKv,
    OfferKv,
    OpenTransfer,
)
from ..core.events import (
    Event,
    KvAcked,
    KvCloseAcked,
    KvClosed,
    KvExpected,
    KvLanded,
    KvRefused,
    LineMeasured,
    TransferFailed,
)
from ..core.ids import Peer, TransferId
from ..core.link import LinkEstimator
from .line import Flow, SimLine
from .world import World


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes on the line: of one token, and once for each hand-over. `streaming`: chunks leave as they are computed."""

    token_bytes: float
    state_bytes: float = 0.0
    streaming: bool = True


@dataclass(slots=True, eq=False)
class Leaving:
    """One transfer on its way out. `ranges` are offered tokens; `told` of the flow's bytes were reported as landed."""

    effect: OpenTransfer
    receiver: "SimKv"
    line: SimLine
    estimator: LinkEstimator
    flow: Flow
    ranges: list[tuple[int, int]] = field(default_factory=list)
    offered: int = 0  # tokens
    landed: int = 0  # tokens
    since: float = 0.0  # when the piece under way began to cross
    told: float = 0.0
    began_at: float = 0.0
    closing: bytes | None = None


class SimKv:
    """`lines(receiver)`: the line to that peer's site. `peers`: all links by address, alive ones only."""

    def __init__(
        self,
        me: Peer,
        world: World,
        sink: Callable[[Event], None],
        sizes: Sizes,
        lines: Callable[[Peer], SimLine],
        peers: dict[str, "SimKv"],
        staging_bytes: float,
    ) -> None:
        self.me, self.address = me, f"{me.name}.{me.incarnation}"
        self._world, self.sink, self._sizes, self._lines, self._peers = world, sink, sizes, lines, peers
        self._free_bytes = staging_bytes
        self._expected: dict[TransferId, ExpectKv] = {}
        self._leaving: dict[TransferId, Leaving] = {}
        self._estimators: dict[str, LinkEstimator] = {}
        peers[self.address] = self

    # -- receiving ----------------------------------------------------------------------------------------------------

    def expect(self, effect: ExpectKv) -> None:
        known = self._expected.get(effect.transfer)
        if known != effect:
            size = (effect.stop - effect.start) * self._sizes.token_bytes
            self._drop(effect.transfer)
            if size > self._free_bytes:
                return self.sink(KvRefused(effect.transfer, "memory"))
            self._free_bytes -= size
            self._expected[effect.transfer] = effect
        self.sink(KvExpected(effect.transfer, self.address))

    def drop(self, effect: DropKv) -> None:
        self._drop(effect.transfer)

    def _drop(self, transfer: TransferId) -> None:
        known = self._expected.pop(transfer, None)
        if known:
            self._free_bytes += (known.stop - known.start) * self._sizes.token_bytes

    def expected(self, transfer: TransferId) -> ExpectKv:
        return self._expected[transfer]

    # -- sending ------------------------------------------------------------------------------------------------------

    def open_transfer(self, effect: OpenTransfer) -> None:
        before = self._leaving.get(effect.transfer)
        since = before.flow.opened_at if before else self._world.now()  # asked for again: it has waited all the same
        self._cancel(effect.transfer)
        receiver = self._peers.get(effect.address)
        if receiver is None:
            self._world.call_later(0.01, lambda: self.sink(TransferFailed(effect.transfer, "unreachable")))
            return
        line, now = self._lines(effect.receiver), self._world.now()
        estimator = self._estimators.get(effect.receiver.site)
        if estimator is None:
            estimator = self._estimators[effect.receiver.site] = LinkEstimator(effect.receiver.site)
            estimator.on_round_trip(line.rtt_s)
        leaving = Leaving(effect, receiver, line, estimator, Flow(0, now, lambda: None), began_at=now)
        total = effect.tokens * self._sizes.token_bytes + self._sizes.state_bytes
        leaving.flow = line.open(lambda: self._crossed(leaving), total, since, self.me, warm_up=effect.warm_up)
        self._leaving[effect.transfer] = leaving

    def offer(self, effect: OfferKv) -> None:
        leaving = self._leaving.get(effect.transfer)
        if leaving is None:
            return
        leaving.ranges.append((effect.start, effect.stop))
        leaving.offered += effect.stop - effect.start
        if self._sizes.streaming:
            self._release(leaving, (effect.stop - effect.start) * self._sizes.token_bytes)

    def close_transfer(self, effect: CloseTransfer) -> None:
        leaving = self._leaving.get(effect.transfer)
        if leaving is None:
            return
        leaving.closing = effect.closing
        held_back = 0.0 if self._sizes.streaming else leaving.offered * self._sizes.token_bytes
        if rest := held_back + self._sizes.state_bytes:
            self._release(leaving, rest)
        elif leaving.flow.left <= 0:
            self._finish(leaving)

    def cancel(self, effect: CancelTransfer) -> None:
        self._cancel(effect.transfer)

    def _cancel(self, transfer: TransferId) -> None:
        leaving = self._leaving.pop(transfer, None)
        if leaving:
            leaving.line.cancel(leaving.flow)
            leaving.estimator.on_withdrawn(int(leaving.flow.ready - leaving.told))

    def _release(self, leaving: Leaving, count: float) -> None:
        if leaving.flow.left <= 0:
            leaving.since = self._world.now()
        if not leaving.flow.ready:
            leaving.began_at = self._world.now()
        leaving.estimator.on_offered(int(leaving.flow.ready + count) - int(leaving.flow.ready))
        leaving.line.offer(leaving.flow, count)
        self._tell_line(leaving.estimator)

    # -- what crossed -------------------------------------------------------------------------------------------------

    def _crossed(self, leaving: Leaving) -> None:
        if self._leaving.get(leaving.effect.transfer) is not leaving:
            return
        now, flow, rtt_s = self._world.now(), leaving.flow, leaving.line.rtt_s
        count, since = int(flow.sent) - int(leaving.told), leaving.since
        leaving.told, leaving.since = flow.sent, now
        tokens = leaving.offered if flow.left <= 0 else int(flow.sent / self._sizes.token_bytes)
        pieces = _between(leaving.ranges, leaving.landed, tokens)
        leaving.landed = max(leaving.landed, tokens)
        self._world.call_later(rtt_s / 2, lambda: leaving.receiver.take_in(leaving.effect.transfer, pieces))
        self._world.call_later(rtt_s, lambda: self._answered(leaving, count, since, pieces))
        if flow.left <= 0 and leaving.closing is not None:
            self._finish(leaving)

    def _answered(self, leaving: Leaving, count: int, since: float, pieces: list[tuple[int, int]]) -> None:
        if count > 0 and self._leaving.get(leaving.effect.transfer) is leaving:
            leaving.estimator.on_sent(count, since)
            leaving.estimator.on_acked(count, since, self._world.now())
            self._tell_line(leaving.estimator)
        for start, stop in pieces:
            self.sink(KvAcked(leaving.effect.transfer, start, stop))

    def take_in(self, transfer: TransferId, pieces: list[tuple[int, int]]) -> None:
        if transfer in self._expected:
            for start, stop in pieces:
                self.sink(KvLanded(transfer, start, stop))

    def _finish(self, leaving: Leaving) -> None:
        transfer, receiver, rtt_s = leaving.effect.transfer, leaving.receiver, leaving.line.rtt_s
        closing = leaving.closing or b""
        self._world.call_later(rtt_s / 2, lambda: receiver.closed(transfer, closing))
        self._world.call_later(rtt_s, lambda: self._close_answered(leaving))

    def closed(self, transfer: TransferId, closing: bytes) -> None:
        if transfer in self._expected:
            self.sink(KvClosed(transfer, closing))

    def _close_answered(self, leaving: Leaving) -> None:
        transfer = leaving.effect.transfer
        if self._leaving.get(transfer) is leaving:
            del self._leaving[transfer]
            seconds = self._world.now() - leaving.began_at
            self.sink(KvCloseAcked(transfer, int(leaving.flow.sent), seconds))

    def _tell_line(self, estimator: LinkEstimator) -> None:
        state = estimator.report(self._world.now())
        if state:
            self.sink(LineMeasured(state))

    # -- ends ---------------------------------------------------------------------------------------------------------

    def die(self) -> None:
        """The process is gone: what it sent stops, and who sent to it learns it."""
        self._peers.pop(self.address, None)
        for transfer in list(self._leaving):
            self._cancel(transfer)
        for other in list(self._peers.values()):
            other.lost(self)

    def lost(self, receiver: "SimKv") -> None:
        for transfer, leaving in list(self._leaving.items()):
            if leaving.receiver is receiver:
                self._cancel(transfer)
                self.sink(TransferFailed(transfer, "lost"))


def _between(ranges: list[tuple[int, int]], first: int, last: int) -> list[tuple[int, int]]:
    """Tokens [first, last) of the concatenated ranges, as ranges; neighbours are joined."""
    found: list[tuple[int, int]] = []
    at = 0
    for start, stop in ranges:
        begin, end = max(start, start + first - at), min(stop, start + last - at)
        if begin < end:
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
        at += stop - start
    return found
