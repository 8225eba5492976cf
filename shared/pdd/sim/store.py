"""The prefix store of a simulated fleet: what adapters/prefix_memory promises, with a binary search over prefix-closed sets."""

from collections.abc import Sequence

from ..core.effects import FindPrefix, KeepHolder, ReplaceBlocks, StoreBlocks
from ..core.events import PrefixFound, StoreFailed
from ..core.ids import BlockHash
from ..ports import Clock, Sink


class _Holder:
    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.expires = 0.0
        self.blocks: set[BlockHash] = set()

    def held(self, blocks: Sequence[BlockHash]) -> int:
        """How many of the chain from its start: leaf-first eviction keeps the set closed under prefixes."""
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high + 1) // 2
            if blocks[middle - 1] in self.blocks:
                low = middle
            else:
                high = middle - 1
        return low


class SimStore:
    def __init__(self, sink: Sink, clock: Clock, delay_s: float = 0.0003) -> None:
        self._sink, self._clock, self._delay_s = sink, clock, delay_s
        self._holders: dict[str, _Holder] = {}

    def store(self, effect: StoreBlocks) -> None:
        holder = self._holders.get(effect.holder.name)
        if holder is None or holder.incarnation < effect.holder.incarnation:
            self._answer(StoreFailed("unknown holder", effect.holder))
        elif holder.incarnation == effect.holder.incarnation:
            holder.blocks.update(effect.stored)
            holder.blocks.difference_update(effect.removed)

    def replace(self, effect: ReplaceBlocks) -> None:
        holder = self._renewed(effect.holder.name, effect.holder.incarnation)
        if holder:
            holder.blocks = set(effect.blocks)

    def keep(self, effect: KeepHolder) -> None:
        known = effect.holder.name in self._holders
        holder = self._renewed(effect.holder.name, effect.holder.incarnation)
        if holder:
            holder.expires = self._clock.now() + effect.ttl_s
            if not known:
                self._answer(StoreFailed("unknown holder", effect.holder))

    def _renewed(self, name: str, incarnation: int) -> _Holder | None:
        """None for a former life."""
        holder = self._holders.get(name)
        if holder is None or holder.incarnation < incarnation:
            holder = self._holders[name] = _Holder(incarnation)
            holder.expires = self._clock.now() + 10.0
        return holder if holder.incarnation == incarnation else None

    def find(self, effect: FindPrefix) -> None:
        now = self._clock.now()
        found = tuple(
            (name, holder.incarnation, length)
            for name, holder in sorted(self._holders.items())
            if holder.expires > now and (length := holder.held(effect.blocks))
        )
        self._answer(PrefixFound(effect.query, effect.asker, found))

    def _answer(self, event: PrefixFound | StoreFailed) -> None:
        self._clock.call_later(self._delay_s, lambda: self._sink(event))
