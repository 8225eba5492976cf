"""The pool against a naive twin: lists of ids, linear scans, the same law of eviction."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from pdd.core.blocks import block_hashes
from pdd.core.ids import BlockHash
from pdd.core.pool import Lease, Pool

PAGE = 32  # half a hash block
PAGES = 7

letters = st.lists(st.integers(0, 1), max_size=5)


def spell(letters: list[int], tail: int = 0) -> list[int]:
    """Ids of one page per letter, then a part of a page."""
    return [letter * 100 + i for letter in letters for i in range(PAGE)] + list(range(tail))


class NaivePool:
    """Prefixes as tuples. `unpinned` in the order in which they may go."""

    def __init__(self) -> None:
        self.unpinned: list[tuple[str, tuple[int, ...]]] = []
        self.pins: list[tuple[str, tuple[int, ...]]] = []
        self.own = 0

    @property
    def cached(self) -> set[tuple[str, tuple[int, ...]]]:
        return {*self.unpinned, *self.pins}

    @property
    def free(self) -> int:
        return PAGES - self.own - len(self.cached)

    def pin(self, prefix: tuple[str, tuple[int, ...]]) -> None:
        self.pins.append(prefix)
        if prefix in self.unpinned:
            self.unpinned.remove(prefix)

    def unpin(self, prefix: tuple[str, tuple[int, ...]]) -> None:
        self.pins.remove(prefix)
        if prefix not in self.pins:
            self.unpinned.append(prefix)

    def evict_until(self, count: int) -> None:
        while self.free < count:
            leaves = (p for p in self.unpinned if not any(q[0] == p[0] and q[1][:-PAGE] == p[1] for q in self.cached))
            self.unpinned.remove(next(leaves))

    def stored(self) -> set[BlockHash]:
        return {
            block_hashes(ids, "weights", salt)[-1] for salt, ids in self.cached if len(ids) % (2 * PAGE) == 0 and ids
        }


class Holder:
    """A sequence of the test: its ids, its lease, how far it has computed, how many cached pages it has pinned."""

    def __init__(self, salt: str, ids: list[int], lease: Lease, pinned: int) -> None:
        self.salt, self.ids, self.lease, self.pinned = salt, ids, lease, pinned
        self.computed = pinned * PAGE

    def prefix(self, pages: int) -> tuple[str, tuple[int, ...]]:
        return self.salt, tuple(self.ids[: pages * PAGE])


class PoolEqualsNaive(RuleBasedStateMachine):
    holders: Bundle[Holder] = Bundle("holders")

    @initialize()
    def build(self) -> None:
        self.pool, self.naive = Pool(PAGES, PAGE, "weights"), NaivePool()
        self.open: list[Holder] = []
        self.told: set[BlockHash] = set()

    @rule(target=holders, letters=letters, tail=st.integers(0, PAGE - 1), salt=st.sampled_from(["", "a"]))
    def match(self, letters: list[int], tail: int, salt: str) -> Holder:
        ids = spell(letters, tail)
        lease = self.pool.match(ids, salt, len(ids))
        pinned = 0
        while (pinned + 1) * PAGE <= len(ids) and (salt, tuple(ids[: (pinned + 1) * PAGE])) in self.naive.cached:
            pinned += 1
        holder = Holder(salt, ids, lease, pinned)
        assert len(lease.pages) == pinned
        for depth in range(1, pinned + 1):
            self.naive.pin(holder.prefix(depth))
        self.open.append(holder)
        return holder

    @rule(holder=holders)
    def deepen(self, holder: Holder) -> None:
        if len(holder.lease.pages) > holder.pinned:
            return
        self.pool.deepen(holder.lease, holder.ids, len(holder.ids))
        while (holder.pinned + 1) * PAGE <= len(holder.ids) and holder.prefix(holder.pinned + 1) in self.naive.cached:
            holder.pinned += 1
            self.naive.pin(holder.prefix(holder.pinned))
        holder.computed = holder.pinned * PAGE
        assert len(holder.lease.pages) == holder.pinned

    @rule(holder=holders, count=st.integers(0, 4))
    def allocate(self, holder: Holder, count: int) -> None:
        fits = count <= self.naive.free + len(self.naive.unpinned)
        assert self.pool.allocate(holder.lease, count) is fits
        if fits:
            self.naive.evict_until(count)
            self.naive.own += count

    @rule(holder=holders, share=st.floats(0, 1))
    def compute(self, holder: Holder, share: float) -> None:
        most = min(len(holder.ids), len(holder.lease.pages) * PAGE)
        holder.computed = max(holder.computed, int(most * share))
        self.pool.adopt(holder.lease, holder.ids, holder.computed)
        while (holder.pinned + 1) * PAGE <= holder.computed and holder.prefix(
            holder.pinned + 1
        ) not in self.naive.cached:
            holder.pinned += 1
            self.naive.pin(holder.prefix(holder.pinned))
            self.naive.own -= 1

    @rule(holder=consumes(holders))
    def give_back(self, holder: Holder) -> None:
        self.naive.own -= len(holder.lease.pages) - holder.pinned
        self.pool.give_back(holder.lease, holder.ids, holder.computed)
        self.open.remove(holder)
        whole = holder.computed // PAGE
        for depth in range(holder.pinned + 1, whole + 1):
            self.naive.pin(holder.prefix(depth))
        for depth in range(max(whole, holder.pinned), 0, -1):
            self.naive.unpin(holder.prefix(depth))

    @rule(holder=holders)
    def give_back_last(self, holder: Holder) -> None:
        if not holder.lease.pages:
            return
        if len(holder.lease.pages) == holder.pinned:
            self.naive.unpin(holder.prefix(holder.pinned))
            holder.pinned -= 1
        else:
            self.naive.own -= 1
        self.pool.give_back_last(holder.lease)
        holder.computed = min(holder.computed, len(holder.lease.pages) * PAGE)

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.free == self.naive.free >= 0
        assert self.pool.cached == len(self.naive.cached)
        assert self.pool.available == self.naive.free + len(self.naive.unpinned)

    @invariant()
    def no_page_has_two_owners(self) -> None:
        own = [page for holder in self.open for page in holder.lease.pages[holder.lease.node.depth :]]
        shared = {page for holder in self.open for page in holder.lease.pages[: holder.lease.node.depth]}
        assert len(own) == len(set(own)) == self.naive.own
        assert not shared & set(own)

    @invariant()
    def stored_blocks_are_those_of_the_cached_prefixes(self) -> None:
        stored, removed = self.pool.take_changes()
        assert not set(stored) & set(removed)
        assert not self.told & set(stored) and self.told >= set(removed)
        self.told = (self.told | set(stored)) - set(removed)
        assert set(self.pool.snapshot()) == self.told == self.naive.stored()

    def teardown(self) -> None:
        for holder in [*self.open]:
            self.give_back(holder)
        assert self.pool.free + self.pool.cached == PAGES == self.pool.available


PoolEqualsNaive.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestPoolEqualsNaive = pytest.mark.timeout(400)(PoolEqualsNaive.TestCase)  # to shrink a failure takes minutes


def test_pages_of_one_sequence_lie_together_and_go_on_after_the_last() -> None:
    pool = Pool(16, 16, "weights")
    first = pool.match([], "", 0)
    second = pool.match([], "", 0)
    assert pool.allocate(first, 3) and pool.allocate(second, 2)
    pool.give_back(first, [], 0)
    assert pool.allocate(second, 2)
    assert second.pages == [3, 4, 5, 6]
    third = pool.match([], "", 0)
    assert pool.allocate(third, 4), "the hole of three is too small"
    assert third.pages == [7, 8, 9, 10]
    fourth = pool.match([], "", 0)
    assert pool.allocate(fourth, 7), "no run is long enough: pieces"
    assert fourth.pages == [0, 1, 2, 11, 12, 13, 14]


def test_the_least_recently_used_leaf_goes_first_and_its_parent_after_it() -> None:
    pool = Pool(4, 64, "weights")
    long, other = [1] * 192, [2] * 64
    for ids in (long, other):
        lease = pool.match(ids, "", len(ids))
        assert pool.allocate(lease, len(ids) // 64)
        pool.give_back(lease, ids, len(ids))
    lease = pool.match([], "", 0)
    hashes = block_hashes(tuple(long), "weights", "")
    pool.take_changes()
    for count in (1, 2, 3):
        assert pool.allocate(lease, 1)
        assert pool.take_changes() == ((), (hashes[3 - count],))


def test_a_page_size_must_divide_the_hash_block() -> None:
    with pytest.raises(ValueError, match="48"):
        Pool(4, 48, "weights")


def test_what_came_and_went_between_two_reports_is_in_neither() -> None:
    pool = Pool(1, 64, "weights")
    for ids in ([1] * 64, [2] * 64):
        lease = pool.match(ids, "", 0)
        assert pool.allocate(lease, 1)
        pool.give_back(lease, ids, 64)
    assert pool.take_changes() == (tuple(block_hashes((2,) * 64, "weights", "")), ())
