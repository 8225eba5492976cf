"""The sender's side of one connection, sans I/O: which frame leaves next, what the answers mean, when the line is dead.

Transfers take turns, chunk by chunk. At most a window of chunks is unanswered, so a cancelled transfer frees the line soon.
Answers come in order: what was sent before an answered frame and has no answer is lost, and holds no window.
"""

from collections import deque
from dataclasses import dataclass, field

from .effects import OpenTransfer
from .events import Event, KvAcked, KvCloseAcked, TransferFailed
from .ids import Key, TransferId
from .link import LinkEstimator
from .unanswered import Item, Unanswered
from .wire import (
    ENDS_CHUNK,
    AckFrame,
    CancelFrame,
    ChunkFrame,
    CloseAck,
    CloseFrame,
    Frame,
    OpenFrame,
    Ping,
    Pong,
    Refuse,
    WireShape,
    checksum,
)

PING_EVERY_S = 1.0
PROBE_AFTER_S = 3.0  # a connection that was silent for so long is asked first whether it still stands


@dataclass(frozen=True, slots=True)
class ChunkDue:
    """Export tokens [start, stop) of `key` now, and send them."""

    transfer: TransferId
    attempt: int
    key: Key
    start: int
    stop: int

    def frame(self, shape: WireShape, payload: memoryview) -> ChunkFrame:
        """What goes before `payload`: all layers of these tokens."""
        return ChunkFrame(
            self.transfer,
            self.attempt,
            self.key.epoch,
            self.start,
            self.stop,
            0,
            shape.layers,
            shape.dtype,
            checksum(payload),
            payload.nbytes,
        )


@dataclass(slots=True)
class Leaving:
    """One transfer on its way out. `ranges` are offered and not sent."""

    effect: OpenTransfer
    attempt: int
    ranges: deque[tuple[int, int]] = field(default_factory=deque)
    opened: bool = False
    closing: bytes | None = None
    close_sent: bool = False
    acked_bytes: int = 0
    began_at: float | None = None

    @property
    def tokens(self) -> int:
        return sum(stop - start for start, stop in self.ranges)


_NO_TRANSFER = TransferId("")


class Outbox:
    def __init__(self, shape: WireShape, link: LinkEstimator, silence_s: float, chunk_tokens_max: int) -> None:
        self._shape, self._link = shape, link
        self._silence_s, self._chunk_tokens_max = silence_s, chunk_tokens_max
        self._leaving: dict[TransferId, Leaving] = {}
        self._turns: deque[TransferId] = deque()
        self._cancels: deque[CancelFrame] = deque()
        self._sent = Unanswered(link)
        self._answered_at = 0.0
        self._pinged_at = 0.0
        self._pings = 0
        self._probing = False

    # -- what the role asks -------------------------------------------------------------------------------------------

    def open(self, effect: OpenTransfer, attempt: int) -> None:
        self.cancel(effect.transfer)
        self._leaving[effect.transfer] = Leaving(effect, attempt)
        self._turns.append(effect.transfer)

    def offer(self, transfer: TransferId, start: int, stop: int) -> None:
        if leaving := self._leaving.get(transfer):
            leaving.ranges.append((start, stop))
            self._link.on_offered((stop - start) * self._shape.bytes_per_token)

    def close(self, transfer: TransferId, closing: bytes) -> None:
        if leaving := self._leaving.get(transfer):
            leaving.closing = closing

    def cancel(self, transfer: TransferId) -> None:
        """What is on the line still arrives; nothing of it leaves any more. Unknown transfers are fine."""
        leaving = self._forget(transfer)
        if leaving and leaving.opened:
            self._cancels.append(CancelFrame(transfer, leaving.attempt))

    def fail(self, transfer: TransferId, attempt: int, reason: str) -> list[Event]:
        """Our side cannot go on with it."""
        leaving = self._leaving.get(transfer)
        if leaving is None or leaving.attempt != attempt:
            return []
        self.cancel(transfer)
        return [TransferFailed(transfer, reason)]

    # -- what leaves --------------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        return bool(self._leaving or self._cancels or self._sent)

    @property
    def untouched(self) -> bool:
        """No transfer has sent anything on this connection: losing it costs none of them anything."""
        return not any(leaving.opened for leaving in self._leaving.values())

    def next(self, now: float) -> Frame | ChunkDue | None:
        """The next frame to send, taken as sent. None: nothing may leave before an answer, an offer or a ping's time."""
        if self._leaving and not self._sent and now - self._answered_at > PROBE_AFTER_S:
            self._probing = True
            return self._ping(now)
        if self._probing:
            return None
        if self._cancels:
            return self._cancels.popleft()
        if self.active and now - self._pinged_at >= PING_EVERY_S and _ping_item(self._pings) not in self._sent:
            return self._ping(now)
        for _ in range(len(self._turns)):
            transfer = self._turns[0]
            self._turns.rotate(-1)
            frame = self._next_of(self._leaving[transfer], now)
            if frame:
                return frame
        return None

    def _next_of(self, leaving: Leaving, now: float) -> Frame | ChunkDue | None:
        if not leaving.opened:
            leaving.opened = True
            effect, epoch = leaving.effect, leaving.effect.key.epoch
            return OpenFrame(
                effect.transfer, leaving.attempt, epoch, effect.receiver, effect.secret, self._shape, effect.traceparent
            )
        if leaving.ranges:
            return self._chunk(leaving, now) if self._sent.payload_bytes < self._link.window_bytes(now) else None
        if leaving.closing is not None and not leaving.close_sent:
            leaving.close_sent = True
            self._sent.add(Item("close", leaving.effect.transfer, leaving.attempt), 0, now)
            return CloseFrame(leaving.effect.transfer, leaving.attempt, leaving.closing)
        return None

    def _chunk(self, leaving: Leaving, now: float) -> ChunkDue:
        start, stop = leaving.ranges.popleft()
        size = self._chunk_tokens(now)
        cut = min(stop, (start // size + 1) * size)  # at multiples: what is sent again has the same bounds
        if cut < stop:
            leaving.ranges.appendleft((cut, stop))
        if leaving.began_at is None:
            leaving.began_at = now
        transfer, attempt = leaving.effect.transfer, leaving.attempt
        payload = (cut - start) * self._shape.bytes_per_token
        self._sent.add(Item("chunk", transfer, attempt, start, cut), payload, now)
        return ChunkDue(transfer, attempt, leaving.effect.key, start, cut)

    def _chunk_tokens(self, now: float) -> int:
        """A power of two, so that chunks of different sizes nest."""
        tokens = min(self._link.chunk_bytes(now) // self._shape.bytes_per_token, self._chunk_tokens_max)
        return 1 << (max(1, tokens).bit_length() - 1)

    def _ping(self, now: float) -> Ping:
        self._pings += 1
        self._pinged_at = now
        self._sent.add(_ping_item(self._pings), 0, now)
        return Ping(self._pings)

    # -- what comes back ----------------------------------------------------------------------------------------------

    def connected(self, now: float, round_trip_s: float) -> None:
        self._answered_at = self._pinged_at = now
        self._link.on_round_trip(round_trip_s)

    def receive(self, frame: Frame, now: float) -> list[Event]:
        """An answer of the receiver. What fits nothing here belongs to the past and changes nothing."""
        self._answered_at = now
        match frame:
            case AckFrame(transfer, attempt, start, stop):
                return self._acked(Item("chunk", transfer, attempt, start, stop), now)
            case CloseAck(transfer, attempt):
                return self._close_acked(Item("close", transfer, attempt), now)
            case Refuse(transfer, attempt, reason, start, stop):
                return self._refused(Item("chunk", transfer, attempt, start, stop), reason)
            case Pong(number):
                return self._ponged(_ping_item(number), now)
        return []

    def _acked(self, item: Item, now: float) -> list[Event]:
        events = self._lose_before(item)
        sent = self._sent.answer(item, now)
        if leaving := self._current(item):
            leaving.acked_bytes += sent.size if sent else 0
            events.append(KvAcked(item.transfer, item.start, item.stop))
        return events

    def _close_acked(self, item: Item, now: float) -> list[Event]:
        events = self._lose_before(item)
        leaving = self._current(item)
        if self._sent.answer(item, now) and leaving:
            self._forget(item.transfer)
            began = now if leaving.began_at is None else leaving.began_at
            events.append(KvCloseAcked(item.transfer, leaving.acked_bytes, now - began))
        return events

    def _refused(self, item: Item, reason: str) -> list[Event]:
        events = self._lose_before(item)
        self._sent.lose(item)
        if reason not in ENDS_CHUNK and self._current(item):
            self._forget(item.transfer)
            events.append(TransferFailed(item.transfer, reason))
        return events

    def _ponged(self, item: Item, now: float) -> list[Event]:
        events = self._lose_before(item)
        sent = self._sent.answer(item, now)
        if sent:
            self._probing = False
            if sent.clean:
                self._link.on_round_trip(now - sent.at)
        return events

    def _lose_before(self, item: Item) -> list[Event]:
        """A lost chunk is asked for again by its receiver's next ticket; a lost closing frame leaves the transfer without an end."""
        events: list[Event] = []
        for lost in self._sent.lost_before(item):
            if lost.kind == "close" and self._current(lost):
                self._forget(lost.transfer)
                events.append(TransferFailed(lost.transfer, "unanswered"))
        return events

    def _current(self, item: Item) -> Leaving | None:
        """The transfer, if `item` belongs to its present attempt."""
        leaving = self._leaving.get(item.transfer)
        return leaving if leaving and leaving.attempt == item.attempt else None

    def _forget(self, transfer: TransferId) -> Leaving | None:
        leaving = self._leaving.pop(transfer, None)
        if leaving:
            self._turns.remove(transfer)
            self._link.on_withdrawn(leaving.tokens * self._shape.bytes_per_token)
        return leaving

    # -- how it ends --------------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> bool:
        """Something waits for an answer, and none came for too long."""
        if not self._sent:
            return False
        return now - max(self._sent.oldest_at, self._answered_at) > self._silence_s

    def disconnected(self) -> None:
        """The connection is gone; transfers that had not begun stay for the next one. Call `lost` first where some had."""
        self._sent.clear()
        self._cancels.clear()
        self._probing = False

    def lost(self, reason: str) -> list[Event]:
        """No connection: every transfer fails."""
        transfers = list(self._leaving)
        for transfer in transfers:
            self._forget(transfer)
        self.disconnected()
        return [TransferFailed(transfer, reason) for transfer in transfers]


def _ping_item(number: int) -> Item:
    return Item("ping", _NO_TRANSFER, number)
