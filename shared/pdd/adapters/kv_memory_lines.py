"""The lines between memory links: each pair of sites has a rate, a delay, and switches to stall and to cut it.

Only `clock.now` and `clock.call_later` are used, so that it runs in virtual time. Frames may be lost, doubled, delayed past
others or damaged by a `Fault`, whose chances come from the random numbers it is given.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..core.wire import ChunkFrame, Frame
from ..ports import Clock

if TYPE_CHECKING:
    from .kv_memory import MemoryKvLink
    from .kv_memory_lane import Connection


class Parcel(NamedTuple):
    """One frame on its way. `late_s`: beyond the line's own delay, so that others may overtake it."""

    frame: Frame
    payload: memoryview | None = None
    late_s: float = 0.0


Fault = Callable[[Parcel], list[Parcel]]


def no_fault(parcel: Parcel) -> list[Parcel]:
    return [parcel]


@dataclass(frozen=True, slots=True)
class RandomFaults:
    """Chances for each chunk. A damaged chunk has one bit flipped, a cut one lost its second half."""

    rng: random.Random
    lose: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    damage: float = 0.0
    cut: float = 0.0
    late_s: float = 0.05

    def __call__(self, parcel: Parcel) -> list[Parcel]:
        frame, payload, _ = parcel
        if not isinstance(frame, ChunkFrame) or payload is None:
            return [parcel]
        if self.rng.random() < self.lose:
            return []
        if self.rng.random() < self.damage:
            parcel = Parcel(frame, flipped(payload, self.rng.randrange(payload.nbytes)))
        if self.rng.random() < self.cut:
            parcel = Parcel(frame, payload[: payload.nbytes // 2])
        if self.rng.random() < self.delay:
            parcel = parcel._replace(late_s=self.late_s)
        return [parcel, parcel] if self.rng.random() < self.double else [parcel]


def flipped(payload: memoryview, at: int) -> memoryview:
    copy = bytearray(payload)
    copy[at] ^= 1
    return memoryview(copy)


@dataclass(slots=True)
class Way:
    """One direction between two sites."""

    bytes_per_s: float = math.inf
    delay_s: float = 0.0  # one way
    busy_until: float = 0.0
    stalled: bool = False
    held: list[Callable[[], None]] = field(default_factory=list)


class MemoryLines:
    def __init__(self, clock: Clock, fault: Fault = no_fault) -> None:
        self.clock, self.fault = clock, fault
        self.bytes_carried: dict[tuple[str, str], int] = {}  # payload and frames, by (from site, to site)
        self._ways: dict[tuple[str, str], Way] = {}
        self._links: dict[str, MemoryKvLink] = {}
        self._connections: dict[Connection, None] = {}
        self._cut: dict[frozenset[str], None] = {}

    # -- what a test or an operator does ------------------------------------------------------------------------------

    def shape(self, site: str, other: str, bytes_per_s: float, rtt_s: float) -> None:
        """Both ways alike; for what is sent from now on."""
        for pair in ((site, other), (other, site)):
            way = self._way(pair)
            way.bytes_per_s, way.delay_s = bytes_per_s, rtt_s / 2

    def stall(self, site: str, other: str) -> None:
        """Nothing arrives, nothing is lost."""
        for pair in ((site, other), (other, site)):
            self._way(pair).stalled = True

    def cut(self, site: str, other: str) -> None:
        """Connections break, what they had on the line is gone, and none can be made."""
        self._cut[frozenset((site, other))] = None
        for pair in ((site, other), (other, site)):
            self._way(pair).busy_until = self.clock.now()
        for connection in list(self._connections):
            if frozenset(connection.sites) == frozenset((site, other)):
                connection.break_off("lost")

    def restore(self, site: str, other: str) -> None:
        self._cut.pop(frozenset((site, other)), None)
        for pair in ((site, other), (other, site)):
            way = self._way(pair)
            way.stalled, held = False, way.held
            way.held = []
            for action in held:
                action()

    # -- what links do ------------------------------------------------------------------------------------------------

    def attach(self, address: str, link: "MemoryKvLink") -> None:
        if address in self._links:
            raise ValueError(f"{address} is taken")
        self._links[address] = link

    def detach(self, address: str) -> None:
        self._links.pop(address, None)

    def reach(self, site: str, address: str) -> "MemoryKvLink | None":
        link = self._links.get(address)
        return None if link is None or frozenset((site, link.me.site)) in self._cut else link

    def opened(self, connection: "Connection") -> None:
        self._connections[connection] = None

    def ended(self, connection: "Connection") -> None:
        self._connections.pop(connection, None)

    def connections(self) -> list["Connection"]:
        return list(self._connections)

    def carry(self, origin: str, target: str, size: int, action: Callable[[], None], late_s: float = 0.0) -> None:
        """Run `action` when `size` bytes have crossed, behind all that was sent before."""
        way, now = self._way((origin, target)), self.clock.now()
        self.bytes_carried[origin, target] = self.bytes_carried.get((origin, target), 0) + size
        way.busy_until = max(now, way.busy_until) + size / way.bytes_per_s
        self.clock.call_later(way.busy_until - now + way.delay_s + late_s, lambda: self._arrive(way, action))

    def _arrive(self, way: Way, action: Callable[[], None]) -> None:
        if way.stalled:
            way.held.append(action)
        else:
            action()

    def _way(self, pair: tuple[str, str]) -> Way:
        return self._ways.setdefault(pair, Way())
