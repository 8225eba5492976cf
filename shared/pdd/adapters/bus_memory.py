"""A bus inside one process, for tests and virtual time: what NATS delivers, plus weather on demand.

Every message is encoded and decoded, so that a receiver sees what the wire would give. Each pair of peers keeps its order
unless `reorder` says otherwise. All chance comes from the `rng` given: same seed, same history.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

from ..core import codec, subjects
from ..core.effects import Count
from ..core.events import Heard
from ..core.ids import Peer
from ..core.messages import Message
from ..ports import Clock, Notes, Sink

MAX_MESSAGE_BYTES = (1 << 20) - 128  # as bus_nats allows with the brokers of infra/nats

Blocked = Callable[[Peer, Peer], bool]


@dataclass(slots=True)
class Weather:
    """Chances per delivery, from 0 to 1. Change them while the bus runs."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0  # such a message comes `late_s` after its time, behind its successors
    late_s: float = 0.05


class MemoryHub:
    """The broker. `delay_s(sender, receiver)` is asked for each delivery."""

    def __init__(
        self,
        clock: Clock,
        rng: Random | None = None,
        delay_s: Callable[[Peer, Peer], float] = lambda sender, receiver: 0.0,
    ) -> None:
        self.clock, self.delay_s = clock, delay_s
        self.weather = Weather()
        self.traceparents: deque[tuple[str, str]] = deque(maxlen=1000)  # (subject, traceparent) of the last sent
        self._rng = rng or Random(0)
        self._attached: list[MemoryBus] = []
        self._lanes: dict[tuple[Peer, Peer], deque[bytes]] = {}
        self._blocked: list[Blocked] = []

    def bus(self, me: Peer, sink: Sink, notes: Notes, *, listen_to: tuple[type[Message], ...] = ()) -> "MemoryBus":
        bus = MemoryBus(self, me, sink, notes, listen_to)
        self._attached.append(bus)
        return bus

    def partition(self, blocked: Blocked) -> Callable[[], None]:
        """Nothing passes from sender to receiver where `blocked` says so, until the returned function is called."""
        self._blocked.append(blocked)
        return lambda: self._blocked.remove(blocked)

    def cut_sites(self, one: str, other: str) -> Callable[[], None]:
        """No message between two sites, either way, until the returned function is called."""
        return self.partition(lambda sender, receiver: {sender.site, receiver.site} == {one, other})

    def detach(self, bus: "MemoryBus") -> None:
        self._attached = [other for other in self._attached if other is not bus]

    def publish(self, sender: "MemoryBus", subject: str, frame: bytes) -> None:
        """To everyone attached who subscribes to `subject`, never back to the sender."""
        for receiver in self._attached:
            if receiver is not sender and receiver.hears(subject):
                self._dispatch(sender.me, receiver, frame)

    def _dispatch(self, sender: Peer, receiver: "MemoryBus", frame: bytes) -> None:
        if any(blocked(sender, receiver.me) for blocked in self._blocked) or self._happens(self.weather.loss):
            return
        delay = self.delay_s(sender, receiver.me)
        for _ in range(1 + self._happens(self.weather.duplicate)):
            if self._happens(self.weather.reorder):
                self.clock.call_later(delay + self.weather.late_s, partial(receiver.hear, frame))
            else:
                # The n-th call to fall due delivers the n-th message, however the delay changes meanwhile.
                lane = self._lanes.setdefault((sender, receiver.me), deque())
                lane.append(frame)
                self.clock.call_later(delay, partial(_deliver_next, receiver, lane))

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._rng.random() < chance


def _deliver_next(receiver: "MemoryBus", lane: deque[bytes]) -> None:
    receiver.hear(lane.popleft())


class MemoryBus:
    """One peer's end. After `close` it hears nothing more, as a process that has ended."""

    def __init__(
        self, hub: MemoryHub, me: Peer, sink: Sink, notes: Notes, listen_to: tuple[type[Message], ...]
    ) -> None:
        self.me = me
        self._hub, self._sink, self._notes = hub, sink, notes
        self._inbox = subjects.inbox(me).removesuffix("*")
        self._verbs = tuple(subjects.from_all(kind).rpartition(".")[2] for kind in listen_to)
        self._open = True

    def send(self, to: Peer, message: Message, traceparent: str) -> None:
        try:
            subject = subjects.to_peer(to, message)
        except ValueError:
            self._drop("bad_name")
            return
        if traceparent:
            self._hub.traceparents.append((subject, traceparent))
        self._post(subject, codec.encode_message(self.me, to, message))

    def broadcast(self, message: Message) -> None:
        self._post(subjects.to_all(self.me, message), codec.encode_message(self.me, None, message))

    def close(self) -> None:
        self._open = False
        self._hub.detach(self)

    def hears(self, subject: str) -> bool:
        return subject.startswith(self._inbox) or subject.rpartition(".")[2] in self._verbs

    def hear(self, frame: bytes) -> None:
        if self._open:
            envelope = codec.decode(frame)
            self._sink(Heard(envelope.sender, envelope.to, envelope.message))

    def _post(self, subject: str, frame: bytes) -> None:
        if not self._open:
            return
        if len(frame) > MAX_MESSAGE_BYTES:
            self._drop("too_large")
            return
        self._hub.publish(self, subject, frame)

    def _drop(self, reason: str) -> None:
        self._notes.note(Count("pdd_bus_dropped_total", (("reason", reason),)))
