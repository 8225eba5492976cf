"""The prefix index: who holds which prefix. A hint for routing, never the truth: tickets are.

Changes are numbered by each worker without gaps. A gap, an unknown worker or a store that lost something asks for a snapshot.
A new incarnation voids what its name held; a worker that stops beating stops counting when its claims run out.
"""

from dataclasses import dataclass

from ..blocks import unpack
from ..effects import Broadcast, Count, Effect, FindPrefix, KeepHolder, ReplaceBlocks, Send, StoreBlocks
from ..errors import IllegalEvent
from ..events import DrainWanted, Event, Heard, PrefixFound, StoreFailed, TimerFired
from ..ids import Peer, Role
from ..messages import Beat, BlocksChanged, EngineLoad, Found, Lookup, Message, Snapshot, SnapshotWanted, WorkerCard
from ..timeouts import TimeOuts


@dataclass(slots=True)
class Holder:
    """`number`: the last change taken; None until a snapshot came."""

    peer: Peer
    number: int | None = None
    asked_at: float = -1e9


class PrefixIndex:
    def __init__(self, me: Peer, timeouts: TimeOuts) -> None:
        self.me, self.timeouts = me, timeouts
        self.holders: dict[str, Holder] = {}
        self.now = 0.0
        self._beats = 0
        self._next_beat = 0.0
        self._effects: list[Effect] = []

    @property
    def deadline(self) -> float | None:
        return self._next_beat

    @property
    def idle(self) -> bool:
        return True

    def start(self, now: float) -> list[Effect]:
        return self.handle(TimerFired(), now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.now, self._effects = now, []
        match event:
            case TimerFired() | DrainWanted():
                pass
            case Heard(sender, to, message):
                if to in (None, self.me):
                    self._hear(sender, message)
                else:
                    self._count("pdd_messages_dropped_total", ("reason", "incarnation"))
            case PrefixFound(query, asker, holders):
                self._count("pdd_index_lookups_total", ("outcome", "hit" if holders else "miss"))
                self._emit(Send(asker, Found(query, holders)))
            case StoreFailed():
                self._store_failed(event)
            case _:
                raise IllegalEvent(f"{type(event).__name__} at {self.me}")
        if now >= self._next_beat:
            self._next_beat = now + self.timeouts.beat_s
            self._beat()
        return self._effects

    def _emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _count(self, name: str, *labels: tuple[str, str]) -> None:
        self._emit(Count(name, labels))

    def _hear(self, sender: Peer, message: Message) -> None:
        match message:
            case Beat() if sender.role in (Role.PREFILL, Role.RELAY, Role.MAIN):
                if holder := self._holder(sender):
                    self._emit(KeepHolder(sender, self.timeouts.lease_s))
                    if holder.number is None:
                        self._ask(holder)
            case Beat():
                pass  # routers and other indexes hold nothing
            case BlocksChanged():
                self._changed(sender, message)
            case Snapshot(number, blocks):
                if holder := self._holder(sender):
                    holder.number = number
                    self._emit(ReplaceBlocks(sender, unpack(blocks)))
            case Lookup(query, blocks):
                self._emit(FindPrefix(query, sender, unpack(blocks)))
            case _:
                self._count("pdd_messages_dropped_total", ("reason", "unfit"))

    def _holder(self, peer: Peer) -> Holder | None:
        """The live holder of that name; None for a former life."""
        holder = self.holders.get(peer.name)
        if holder and peer.incarnation < holder.peer.incarnation:
            self._count("pdd_messages_dropped_total", ("reason", "incarnation"))
            return None
        if holder is None or holder.peer != peer:
            holder = self.holders[peer.name] = Holder(peer)
        return holder

    def _changed(self, sender: Peer, change: BlocksChanged) -> None:
        holder = self._holder(sender)
        if holder is None:
            return
        if holder.number is not None and change.number <= holder.number:
            return self._count("pdd_messages_dropped_total", ("reason", "repeated"))
        if holder.number is None or change.number != holder.number + 1:
            if holder.number is not None:
                self._count("pdd_index_gaps_total")
            holder.number = None
            return self._ask(holder)
        holder.number = change.number
        self._emit(StoreBlocks(sender, unpack(change.stored), unpack(change.removed)))

    def _ask(self, holder: Holder) -> None:
        if self.now - holder.asked_at >= self.timeouts.retry_s:
            holder.asked_at = self.now
            self._emit(Send(holder.peer, SnapshotWanted()))

    def _store_failed(self, event: StoreFailed) -> None:
        """A failed lookup is answered by no hits at once; a failed change makes the holder's claims worthless until a snapshot."""
        if event.query is not None and event.asker is not None:
            self._count("pdd_index_lookups_total", ("outcome", "failed"))
            self._emit(Send(event.asker, Found(event.query, ())))
        if event.holder is not None:
            self._count("pdd_index_gaps_total")
            holder = self.holders.get(event.holder.name)
            if holder and holder.peer == event.holder:
                holder.number = None

    def _beat(self) -> None:
        self._beats += 1
        self._emit(Broadcast(Beat(self._beats, WorkerCard("", 0, 0, 0), (), EngineLoad())))
