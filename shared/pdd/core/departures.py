"""What leaves for one receiver, sans I/O: its transfers, and which frame of them is next on which lane.

The shortest transfer goes first, small ones on a lane of their own. Over all lanes at most a window of chunks is unanswered, and
never more than the receiver gave credit for, so a cancelled transfer frees the line soon and a slow receiver is not run over.
"""

from .effects import OpenTransfer
from .ids import TransferId
from .lane import Lane, chunk_item
from .leaving import ChunkDue, Leaving
from .link import CHUNK_BYTES_MIN, CHUNK_BYTES_SMALL
from .messages import Waiting
from .order import turn
from .pace import Pace
from .packing import Packing
from .unanswered import Item
from .wire import CloseFrame, Frame, WireShape

LANE_BYTES = 64 << 10  # for less no connection is made beside those that are up
TRICKLE_S = 2.0  # whoever waits gets a small chunk through so often, so that nobody takes him for dead
TRICKLE_SHARE = 0.1  # of the line, at most


class Departures:
    """`streams`: lanes for bulk, beside the one for small transfers. All calls under the shell's lock."""

    def __init__(self, shape: WireShape, pace: Pace, *, chunk_tokens_max: int, streams: int, carrier: str) -> None:
        self.shape, self.link, self.pace = shape, pace.link, pace
        self.lanes = [Lane(number, number == 0, pace.link) for number in range(1 + streams)]
        self._chunk_tokens_max, self._streams = chunk_tokens_max, streams
        self.packing = Packing(streams, always=carrier)
        self._credit_bytes = 0
        self._leaving: dict[TransferId, Leaving] = {}
        self._trickle_at = 0.0  # not before

    # -- what the role asks -------------------------------------------------------------------------------------------

    def open(self, effect: OpenTransfer, attempt: int, now: float) -> None:
        before = self._leaving.get(effect.transfer)
        self.cancel(effect.transfer)
        since = before.since if before else now
        small = 0 < effect.tokens * self.shape.bytes_per_token <= self.link.small_limit(now)
        self._leaving[effect.transfer] = Leaving(effect, attempt, small and not effect.warm_up, since, served_at=now)

    def offer(self, transfer: TransferId, start: int, stop: int) -> None:
        if leaving := self._leaving.get(transfer):
            leaving.ranges.append((start, stop))
            self.link.on_offered(self._bytes(stop - start), leaving.small)

    def close(self, transfer: TransferId, closing: bytes) -> None:
        if leaving := self._leaving.get(transfer):
            leaving.closing = closing

    def cancel(self, transfer: TransferId) -> None:
        """What is on the line still arrives; nothing of it leaves any more. Unknown transfers are fine."""
        self._forget(transfer)

    # -- what leaves --------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        return bool(self._leaving) or any(lane.busy for lane in self.lanes)

    def waiting(self, now: float) -> list[Waiting]:
        """The bulk that waits to cross."""
        found = []
        for one in self._leaving.values():
            unanswered = sum(lane.sent.bytes_of(one.effect.transfer, one.attempt) for lane in self.lanes)
            ready = self._bytes(one.waiting_tokens) + unanswered
            if not one.small and ready:
                remaining = self._bytes(one.remaining_tokens) + unanswered
                found.append(Waiting(remaining, ready, round(now - one.since, 3), one.effect.warm_up))
        return found

    def wanted(self, lane: Lane) -> bool:
        """Has this connection something to do, or should it be made?"""
        if lane.up or lane.number <= 1:
            return bool(self._leaving) or lane.busy
        waiting = sum(leaving.waiting_tokens for leaving in self._leaving.values() if not leaving.small)
        return self._bytes(waiting) > lane.number * max(self.link.chunk_bytes(0.0) // self._streams, LANE_BYTES)

    def next(self, lane: Lane, now: float) -> Frame | ChunkDue | None:
        """The next frame to send on this lane, taken as sent. None: nothing may leave before an answer, an offer or `wait_s`."""
        if lane.claimed:
            due, lane.claimed = lane.claimed, None
            return due
        if lane.cancels:
            return lane.cancels.popleft()
        if (self._leaving or lane.busy) and (ping := lane.ping(now)):
            return ping
        leaving = self._choose(lane, now)
        if leaving is None:
            return None
        transfer = leaving.effect.transfer
        if lane.opened.get(transfer) != leaving.attempt:
            lane.opened[transfer] = leaving.attempt
            if leaving.opened and leaving.ranges:
                lane.claimed = self._chunk(
                    lane, leaving, now
                )  # else others might end it before this lane has opened it
            leaving.opened = True
            return leaving.open_frame(self.shape)
        if leaving.ranges:
            return self._chunk(lane, leaving, now)
        leaving.close_sent = True
        lane.sent.add(Item("close", transfer, leaving.attempt), 0, now)
        assert leaving.closing is not None
        return CloseFrame(transfer, leaving.attempt, leaving.closing)

    def wait_s(self, now: float, longest_s: float) -> float:
        """After `next` gave None: so long until it is worth asking again, if nothing happens meanwhile."""
        opens_in_s = self.pace.opens_in_s(now)
        return min(max(opens_in_s, 0.001), longest_s) if opens_in_s else longest_s

    def _choose(self, lane: Lane, now: float) -> Leaving | None:
        """Openings and closing frames at once; then the transfer whose turn it is, if the window and the pace are open."""
        ready: list[Leaving] = []
        others: list[Leaving] = []
        for leaving in self._leaving.values():
            serves = self._serves(lane, leaving)
            if serves and (not leaving.opened or leaving.close_due):
                return leaving
            if leaving.ranges:
                (ready if serves else others).append(leaving)
        if not ready and not lane.small:
            ready = others  # a bulk lane that has no bulk to send helps
        small = [one for one in ready if one.small]
        if not ready or not self._room(bool(small), now):
            return None
        rate = self.link.bytes_per_s(now)
        if not small:
            if self.pace.opens_in_s(now):
                return None
            if starved := self._starved(ready, rate, now):
                return starved
        return min(
            small or ready,
            key=lambda one: turn(self._bytes(one.remaining_tokens), now - one.since, rate, one.effect.warm_up),
        )

    def _serves(self, lane: Lane, leaving: Leaving) -> bool:
        """Its own kind; the other kind where there is no lane for that."""
        return lane.small == leaving.small or not any(
            one.up or one.dialing for one in self.lanes if one.small == leaving.small
        )

    def _room(self, small: bool, now: float) -> bool:
        every = sum(lane.sent.payload_bytes for lane in self.lanes)
        if every and self._credit_bytes and every + self._bytes(self._chunk_tokens(now)) > self._credit_bytes:
            return False
        of_small = sum(lane.sent.small_bytes for lane in self.lanes)
        return (of_small if small else every - of_small) < self.link.window_bytes(now, small)

    def _starved(self, ready: list[Leaving], rate: float, now: float) -> Leaving | None:
        """Who has sent nothing for long gets a small chunk through, within a share of the line."""
        oldest = min(ready, key=lambda one: one.served_at)
        if now - oldest.served_at < TRICKLE_S or now < self._trickle_at:
            return None
        self._trickle_at = now + CHUNK_BYTES_MIN / (TRICKLE_SHARE * rate) if rate else now
        return oldest

    def _chunk(self, lane: Lane, leaving: Leaving, now: float) -> ChunkDue:
        starved = now - leaving.served_at >= TRICKLE_S
        size = self._chunk_tokens(now)
        if starved or leaving.small:
            size = min(size, self._power(CHUNK_BYTES_MIN if starved else CHUNK_BYTES_SMALL))
        start, stop = leaving.cut(size)
        if leaving.began_at is None:
            leaving.began_at = now
        leaving.served_at = now
        transfer, attempt, size = leaving.effect.transfer, leaving.attempt, self._bytes(stop - start)
        lane.sent.add(Item("chunk", transfer, attempt, start, stop), size, now, leaving.small)
        codec = self._codec(now)
        if not leaving.small:
            self.pace.sent(self.packing.crossing(codec, size), now)
        return ChunkDue(transfer, attempt, leaving.effect.key, start, stop, codec)

    def _codec(self, now: float) -> str:
        return self.packing.choose(self.link.capacity.bytes_per_s or self.link.bytes_per_s(now), now)

    def crossing(self, lane: Lane, due: ChunkDue, packed_bytes: int) -> None:
        """The chunk leaves in so many bytes."""
        lane.sent.crossing(chunk_item(due), packed_bytes)
        self.packing.crossed(self._bytes(due.stop - due.start), packed_bytes)
        leaving = self._leaving.get(due.transfer)
        if leaving and leaving.attempt == due.attempt:
            leaving.crossed_bytes += packed_bytes

    def _chunk_tokens(self, now: float) -> int:
        return self._power(max(self.link.chunk_bytes(now) // self._streams, CHUNK_BYTES_MIN))

    def _power(self, size: int) -> int:
        """In tokens, a power of two, so that chunks of different sizes nest."""
        tokens = min(size // self.shape.bytes_per_token, self._chunk_tokens_max)
        return 1 << (max(1, tokens).bit_length() - 1)

    def _bytes(self, tokens: int) -> int:
        return tokens * self.shape.bytes_per_token

    def _forget(self, transfer: TransferId) -> None:
        if leaving := self._leaving.pop(transfer, None):
            self.link.on_withdrawn(self._bytes(leaving.waiting_tokens), leaving.small)
            for lane in self.lanes:
                lane.forget(transfer)
