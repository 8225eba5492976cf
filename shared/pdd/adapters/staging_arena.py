"""One stretch of memory, given out in ranges and used again: what was touched once stays warm, and no more than it is ever used.

Mapped at once, and backed by real memory only as it is touched. Not thread-safe: staging holds its own lock.
"""

import mmap
from bisect import bisect_left

ALIGN = 64


class Arena:
    """`memory`: of that size, where it is not the arena's own."""

    def __init__(self, size: int, memory: memoryview | None = None) -> None:
        self.size = _rounded(size)
        self._memory = memory  # its own is mapped with the first use: most roles never receive
        self._free: list[tuple[int, int]] = [(0, self.size)]  # ascending, disjoint, not adjacent: (offset, bytes)

    def take(self, size: int) -> tuple[int, memoryview] | None:
        """(offset, view) of the lowest gap that holds `size` bytes; None where there is none."""
        wanted = _rounded(size)
        for place, (offset, room) in enumerate(self._free):
            if room >= wanted:
                if room == wanted:
                    del self._free[place]
                else:
                    self._free[place] = (offset + wanted, room - wanted)
                return offset, self.memory[offset : offset + size]
        return None

    def give_back(self, offset: int, size: int) -> None:
        start, stop = offset, offset + _rounded(size)
        place = bisect_left(self._free, (start, 0))
        if place < len(self._free) and self._free[place][0] == stop:
            stop += self._free.pop(place)[1]
        if place and sum(self._free[place - 1]) == start:
            place -= 1
            start = self._free.pop(place)[0]
        self._free.insert(place, (start, stop - start))

    @property
    def whole(self) -> bool:
        """Nothing is out."""
        return self._free == [(0, self.size)]

    @property
    def memory(self) -> memoryview:
        """All of it."""
        if self._memory is None:
            memory = mmap.mmap(-1, self.size)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._memory = memoryview(memory)
        return self._memory


def _rounded(size: int) -> int:
    return max(1, -(-size // ALIGN)) * ALIGN
