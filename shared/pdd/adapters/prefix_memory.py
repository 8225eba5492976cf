"""The prefix store inside one process, for tests and virtual time: plain sets, and the same answers as prefix_redis.

A holder that is seen for the first time, in this store's memory, has no claims: StoreFailed("unknown holder") asks for a
snapshot. Claims of a former incarnation are void at once; those of a holder whose time ran out do not count until it is
kept again.
"""

from dataclasses import dataclass, field

from ..core.effects import Count, FindPrefix, KeepHolder, ReplaceBlocks, StoreBlocks
from ..core.events import Event, PrefixFound, StoreFailed
from ..core.ids import BlockHash, Peer
from ..ports import Clock, Notes, Sink

FIRST_TTL_S = 10.0  # of a holder that a snapshot made known before its first beat
UNKNOWN = "unknown holder"


@dataclass(slots=True)
class _Record:
    incarnation: int
    expires: float
    blocks: set[BlockHash] = field(default_factory=set)


class MemoryPrefixStore:
    """`down` makes every call fail, as an outage does; `flush` forgets everything, as a restart does."""

    def __init__(self, sink: Sink, notes: Notes, clock: Clock, *, delay_s: float = 0.0) -> None:
        self.down = False
        self._sink, self._notes, self._clock, self._delay_s = sink, notes, clock, delay_s
        self._records: dict[str, _Record] = {}

    def flush(self) -> None:
        self._records.clear()

    def store(self, effect: StoreBlocks) -> None:
        """A block that stands in both lists is not held."""
        if self.down:
            return self._fail("store", effect.holder)
        record = self._records.get(effect.holder.name)
        if record and record.incarnation < effect.holder.incarnation:
            del self._records[effect.holder.name]
            record = None
        if record is None:
            self._answer(StoreFailed(UNKNOWN, effect.holder))
        elif record.incarnation == effect.holder.incarnation:
            record.blocks |= set(effect.stored)
            record.blocks -= set(effect.removed)

    def replace(self, effect: ReplaceBlocks) -> None:
        if self.down:
            return self._fail("replace", effect.holder)
        record = self._records.get(effect.holder.name)
        if record and record.incarnation > effect.holder.incarnation:
            return
        if record is None or record.incarnation < effect.holder.incarnation:
            record = _Record(effect.holder.incarnation, self._clock.now() + FIRST_TTL_S)
            self._records[effect.holder.name] = record
        record.blocks = set(effect.blocks)

    def keep(self, effect: KeepHolder) -> None:
        if self.down:  # the next beat says it again
            return self._count_failure("keep")
        record = self._records.get(effect.holder.name)
        if record and record.incarnation > effect.holder.incarnation:
            return
        if record is None or record.incarnation < effect.holder.incarnation:
            record = self._records[effect.holder.name] = _Record(effect.holder.incarnation, 0.0)
            self._answer(StoreFailed(UNKNOWN, effect.holder))
        record.expires = self._clock.now() + effect.ttl_s

    def find(self, effect: FindPrefix) -> None:
        if self.down:
            self._count_failure("find")
            return self._answer(StoreFailed("down", query=effect.query, asker=effect.asker))
        found = []
        for name, record in sorted(self._records.items()):
            length = next(
                (i for i, block in enumerate(effect.blocks) if block not in record.blocks), len(effect.blocks)
            )
            if length and record.expires > self._clock.now():
                found.append((name, record.incarnation, length))
        self._answer(PrefixFound(effect.query, effect.asker, tuple(found)))

    def _fail(self, call: str, holder: Peer) -> None:
        self._count_failure(call)
        self._answer(StoreFailed("down", holder))

    def _count_failure(self, call: str) -> None:
        self._notes.note(Count("pdd_prefix_store_failures_total", (("call", call),)))

    def _answer(self, event: Event) -> None:
        self._clock.call_later(self._delay_s, lambda: self._sink(event))
