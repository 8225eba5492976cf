"""The sender's side of the way to one receiver, sans I/O: what leaves, what the answers mean, and how it all ends.

What was on a connection that broke is sent again on another; a transfer fails only where none can be made, or none gets on.
"""

from collections.abc import Sequence

from .departures import Departures
from .events import Event, KvAcked, KvCloseAcked, TransferFailed
from .ids import TransferId
from .lane import Lane, ping_item
from .leaving import Leaving
from .pace import Pace
from .unanswered import Item
from .wire import (
    ENDS_CHUNK,
    AckFrame,
    CloseAck,
    Frame,
    Hello,
    Pong,
    Reason,
    Refuse,
    WireShape,
)

BESIDE_OTHERS = 3  # silences, for a lane while others are answered
FRUITLESS_MAX = 2  # connections that ended before anything sent on them was answered


class Outbox(Departures):
    def __init__(
        self,
        shape: WireShape,
        pace: Pace,
        *,
        silence_s: float,
        chunk_tokens_max: int,
        streams: int = 1,
        codecs: Sequence[str] = (),
        carrier: str = "",
    ) -> None:
        super().__init__(shape, pace, chunk_tokens_max=chunk_tokens_max, streams=streams, carrier=carrier)
        self._silence_s, self._codecs = silence_s, (carrier,) if carrier else codecs

    # -- what comes back ----------------------------------------------------------------------------------------------

    def connected(self, lane: Lane, hello: Hello, now: float, round_trip_s: float) -> None:
        lane.connected(now)
        self._credit_bytes = hello.credit_bytes
        self.packing.codecs = [codec for codec in self._codecs if codec in hello.codecs]
        if not self.link.inflight_bytes:
            self.link.on_round_trip(round_trip_s)

    def receive(self, lane: Lane, frame: Frame, now: float) -> list[Event]:
        """An answer of the receiver. What fits nothing here belongs to the past and changes nothing."""
        lane.heard(now)
        match frame:
            case AckFrame(transfer, attempt, start, stop):
                return self._acked(lane, Item("chunk", transfer, attempt, start, stop), now)
            case CloseAck(transfer, attempt):
                return self._close_acked(lane, Item("close", transfer, attempt), now)
            case Refuse(transfer, attempt, reason, start, stop):
                return self._refused(lane, Item("chunk", transfer, attempt, start, stop), reason, now)
            case Pong(number):
                return self._ponged(lane, ping_item(number), now)
        return []

    def _acked(self, lane: Lane, item: Item, now: float) -> list[Event]:
        events = self._lose_before(lane, item, now)
        lane.sent.answer(item, now)
        if self._current(item):
            events.append(KvAcked(item.transfer, item.start, item.stop))
        return events + self._end_if_whole(item, now)

    def _close_acked(self, lane: Lane, item: Item, now: float) -> list[Event]:
        events = self._lose_before(lane, item, now)
        leaving = self._current(item)
        if lane.sent.answer(item, now) and leaving:
            leaving.close_answered = True
            lane.opened.pop(item.transfer, None)  # there, the receiver has ended it already
        return events + self._end_if_whole(item, now)

    def _end_if_whole(self, item: Item, now: float) -> list[Event]:
        """The closing frame is answered, and so is every chunk, on whatever lane."""
        leaving = self._current(item)
        if leaving is None or not leaving.close_answered or leaving.ranges:
            return []
        if any(lane.sent.bytes_of(item.transfer, item.attempt) for lane in self.lanes):
            return []
        self._forget(item.transfer)
        began = now if leaving.began_at is None else leaving.began_at
        return [KvCloseAcked(item.transfer, leaving.crossed_bytes, now - began)]

    def _refused(self, lane: Lane, item: Item, reason: str, now: float) -> list[Event]:
        events = self._lose_before(lane, item, now)
        leaving = self._current(item)
        if leaving and reason == Reason.BUSY and item in lane.sent:
            lane.sent.take_back(item)
            leaving.take_back(item.start, item.stop)
            leaving.ranges.rotate(-1)  # behind the rest: whoever writes there needs a moment
            return events
        if reason == Reason.UNKNOWN and leaving and self._needless(lane, leaving, item):
            lane.opened.pop(item.transfer, None)
            return events
        lane.sent.lose(item)
        if leaving and reason not in ENDS_CHUNK:
            self._forget(item.transfer)
            return [*events, TransferFailed(item.transfer, reason)]
        return events + self._end_if_whole(item, now)

    def _needless(self, lane: Lane, leaving: Leaving, item: Item) -> bool:
        """A lane opened the transfer so late that others had brought all of it, and the receiver has let it go."""
        waits = lane.sent.bytes_of(item.transfer, item.attempt) or Item("close", *item[1:3]) in lane.sent
        return leaving.close_sent and not leaving.ranges and not waits

    def _ponged(self, lane: Lane, item: Item, now: float) -> list[Event]:
        events = self._lose_before(lane, item, now)
        sent = lane.sent.answer(item, now)
        if sent and sent.clean:
            self.link.on_round_trip(now - sent.at)
        elif sent:
            self.link.on_loaded_round_trip(now - sent.at, now)
        return events

    def _lose_before(self, lane: Lane, item: Item, now: float) -> list[Event]:
        """A lost chunk is asked for again by its receiver's next ticket; a lost closing frame leaves the transfer without an end."""
        events: list[Event] = []
        for lost in lane.sent.lost_before(item):
            if lost.kind == "close" and self._current(lost):
                self._forget(lost.transfer)
                events.append(TransferFailed(lost.transfer, "unanswered"))
        return events

    def _current(self, item: Item) -> Leaving | None:
        """The transfer, if `item` belongs to its present attempt."""
        leaving = self._leaving.get(item.transfer)
        return leaving if leaving and leaving.attempt == item.attempt else None

    # -- how it ends --------------------------------------------------------------------------------------------------

    def fail(self, transfer: TransferId, attempt: int, reason: str) -> list[Event]:
        """Our side cannot go on with it."""
        leaving = self._leaving.get(transfer)
        if leaving is None or leaving.attempt != attempt:
            return []
        self.cancel(transfer)
        return [TransferFailed(transfer, reason)]

    def overdue(self, lane: Lane, now: float) -> bool:
        """A lane is given more time while others are answered: they may be before it in the line's queue."""
        alone = not any(one.up and now - one.answered_at < self._silence_s for one in self.lanes if one is not lane)
        return lane.silent_s(now) > self._silence_s * (1 if alone else BESIDE_OTHERS)

    def disconnected(self, lane: Lane, reason: str) -> list[Event]:
        """The connection has ended. What was under way on it waits for another one, unless there is no hope in that."""
        lane.fruitless = lane.fruitless + 1 if lane.sent and not lane.answered else 0
        items = lane.disconnected()
        for item in reversed(items):
            self._requeue(lane, item)
        if (reason == "silent" or lane.fruitless) and not any(one.up for one in self.lanes):
            return self.lost(reason)
        if lane.fruitless < FRUITLESS_MAX:
            return []
        lane.fruitless = 0
        stuck = dict.fromkeys((item.transfer, item.attempt) for item in items)
        return [event for transfer, attempt in stuck for event in self.fail(transfer, attempt, reason)]

    def _requeue(self, lane: Lane, item: Item) -> None:
        leaving = self._current(item)
        if leaving is None or item.kind == "ping":
            return lane.sent.lose(item)
        lane.sent.take_back(item)
        if item.kind == "chunk":
            leaving.take_back(item.start, item.stop)
        else:
            leaving.close_sent = False

    def unreachable(self, lane: Lane, reason: str) -> list[Event]:
        """No connection could be made. While another one is up, or may come up, nothing is lost."""
        lane.dialing, lane.failed = False, True
        if reason == "unreachable" and any(one.up or (one.dialing and not one.failed) for one in self.lanes):
            return []
        return self.lost(reason)

    def lost(self, reason: str) -> list[Event]:
        """Every transfer fails. One that had begun had a connection, and lost it."""
        leaving, events = list(self._leaving.values()), list[Event]()
        for one in leaving:
            self._forget(one.effect.transfer)
            why = "lost" if one.opened and reason == "unreachable" else reason
            events.append(TransferFailed(one.effect.transfer, why))
        for lane in self.lanes:
            lane.failed = False
            for item in lane.sent.all():
                lane.sent.lose(item)
        return events
