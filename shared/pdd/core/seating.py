"""Who gets pages: seats are given in order of arrival, never all-but-one page, and always in a way that somebody can go on.

A *seat* is pages for all ids a sequence has; waiting for one holds none but the cached prefix. Seated sequences grow as they write.
Where pages run out, in this order: unpinned cache is evicted; a growing sequence takes from the youngest seated one behind it
that computes (which keeps its ids and waits for a seat anew); and if nothing at all can run, the youngest that wait let their
cached prefixes go. Sequences that are paused, finished or hushed keep their pages: others count on them, and close them.
"""

from bisect import insort
from collections import deque

from .member import Import, Member
from .pool import Lease, Pool


class Seating:
    def __init__(self, pool: Pool, chunk_tokens: int) -> None:
        self._pool = pool
        self._chunk_tokens = chunk_tokens
        self._waiting: list[Member] = []  # to compute, by number
        self._imports: deque[Import] = deque()
        self._granted: deque[Import] = deque()  # have their pages, or a failure
        self._refused_at: tuple[Member, int, int] | None = (
            None  # (who, pages available, pages kept) of the last attempt
        )

    # -- who waits ----------------------------------------------------------------------------------------------------

    def wait(self, member: Member) -> None:
        insort(self._waiting, member, key=lambda member: member.number)

    def wait_import(self, staged: Import) -> None:
        self._imports.append(staged)

    def leave(self, member: Member) -> list[Import]:
        """The member closes. Returns its imports that nobody has begun to write."""
        if member in self._waiting:
            self._waiting.remove(member)
        left = [staged for staged in [*self._granted, *self._imports] if staged.member is member]
        self._imports = deque(staged for staged in self._imports if staged.member is not member)
        self._granted = deque(staged for staged in self._granted if staged.member is not member)
        return left

    def drop(self, member: Member) -> None:
        """Take every page of a member, shared ones too; whole computed pages stay in the cache while there is room."""
        if member.lease is not None:
            self._pool.give_back(member.lease, member.sequence.ids, member.sequence.computed)
        member.lease, member.sequence.pages, member.sequence.computed = None, [], 0
        if member.seated and member.ready and not member.closed:
            self.wait(member)
        member.seated = False

    # -- seats --------------------------------------------------------------------------------------------------------

    def seat(self, members: list[Member]) -> None:
        """Seat imports, and of those that wait to compute as many as the next step has room for."""
        kept = sum(member.seated and member.wants_token for member in members)  # each may soon need one more
        seated_work = sum(member.work for member in members if member.seated and not member.due.decodes)
        while True:
            while self._waiting and self._waiting[0].ended:
                del self._waiting[0]
            staged = self._imports[0] if self._imports else None
            start = self._waiting[0] if self._waiting and seated_work < self._chunk_tokens else None
            if staged and (start is None or staged.member.number < start.number):
                if not self._seat_import(staged, kept):
                    return
                self._granted.append(self._imports.popleft())
            elif start is None or not self._seat_start(start, kept):
                return
            else:
                seated_work += start.work

    def next_import(self) -> Import | None:
        """One that has its pages, or will never have them."""
        return self._granted.popleft() if self._granted else None

    def _seat_start(self, member: Member, kept: int) -> bool:
        ids = member.sequence.ids
        if self._refused_at == (member, self._pool.available, kept):
            return False
        before = member.lease
        lease = before or self._pool.match(ids, member.sequence.cache_salt, 0)
        self._pool.deepen(lease, ids, len(ids) - 1)
        if not self._fill(member, lease, kept):
            if before is None:
                self._pool.give_back(lease, ids, 0)
            else:
                member.take(lease)
            self._refused_at = (member, self._pool.available, kept)
            return False
        member.take(lease)
        self._waiting.remove(member)
        return True

    def _seat_import(self, staged: Import, kept: int) -> bool:
        """True when it has pages for all, or can never have."""
        member = staged.member
        if self._refused_at == (member, self._pool.available, kept):
            return False
        gave_up = member.lease is None
        if member.sequence.computed != staged.start:  # it gave its prefix up, or the sender began earlier
            self._match_again(member, staged.start)
        if member.sequence.computed != staged.start:
            staged.failure = f"the prefix before token {staged.start} is gone"
        elif member.lease is None or not self._fill(member, member.lease, kept):
            if gave_up:
                self.drop(member)  # what it pins for nothing may be what a seated one waits for
            self._refused_at = (member, self._pool.available, kept)
            return False
        return True

    def _match_again(self, member: Member, limit: int) -> None:
        self.drop(member)
        member.take(self._pool.match(member.sequence.ids, member.sequence.cache_salt, limit))

    def _fill(self, member: Member, lease: Lease, kept: int) -> bool:
        """Pages for all ids at once, so they lie together. `kept` pages stay for those who write already."""
        needed = self._pool.pages_for(min(len(member.sequence.ids), member.context)) - len(lease.pages)
        if needed > 0 and (needed + kept > self._pool.available or not self._pool.allocate(lease, needed)):
            return False
        member.seated = True
        return True

    # -- growth -------------------------------------------------------------------------------------------------------

    def grow(self, members: list[Member]) -> list[Member]:
        """Those who can compute in this step. `members` by number: nobody takes from those before it."""
        going = []
        for member in members:
            if member.seated and member.mute:
                self._uncompute_last(member)
            if member.seated and member.work and self._grow(member, members):
                going.append(member)
        return going

    def _uncompute_last(self, member: Member) -> None:
        assert member.lease is not None
        self._pool.give_back_last(member.lease)
        member.sequence.pages = member.lease.pages
        member.sequence.computed = len(member.lease.pages) * self._pool.page_size

    def _grow(self, member: Member, members: list[Member]) -> bool:
        assert member.lease is not None
        needed = self._pool.pages_for(member.target) - len(member.lease.pages)
        while needed > 0 and not self._pool.allocate(member.lease, needed):
            victim = next(other for other in reversed(members) if other.seated and other.work)
            if victim is member:
                return False
            self.drop(victim)
        return True

    def give_way(self, members: list[Member]) -> bool:
        """Nothing can run. If that is for want of pages, the youngest without a seat unpins its prefix; False: there is none."""
        stalled = any(member.seated and member.work for member in members)
        heads = [staged.member for staged in [*self._imports][:1]] + self._waiting[:1]
        if not stalled and not heads:
            return False
        first = None if stalled else min(heads, key=lambda member: member.number)
        for member in reversed(members):
            if not member.seated and member is not first and member.lease and member.lease.node.depth:
                self.drop(member)
                return True
        return False
