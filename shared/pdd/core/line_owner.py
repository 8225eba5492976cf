"""Who sends how fast: orders all transfers that wait for a line between two sites, and leases its bytes to each sender.

The shortest transfer of all senders gets what it can use, then the next; what has waited long comes sooner, warm-up last, and
nobody gets nothing. A sender alone may take the whole line; while something small waits anywhere, or the line's queue is long,
all bulk together stays below it. Leases are short: a sender that hears no more keeps to an equal share. The router hosts it.
"""

import math
from dataclasses import dataclass, field

from .capacity import Capacity
from .effects import Count, Effect, Send
from .ids import Peer
from .link import CHUNK_BYTES_MIN
from .messages import LineLease, LineWants
from .order import turn
from .pace import BESIDE_SMALL, DRAINING, FIRST_S, FIRST_SMALL, QUEUE_LONG_S

LEASE_S = 1.0
SILENT_S = 1.5  # a sender that wants nothing more has gone, or has nothing
AHEAD = 1.25  # of the line's measured rate, while its queue is short: what is leased must not bound what is measured
HORIZON_S = 0.5  # what is ready should leave within so long: more than that rate helps nobody
FLOOR_SHARE = 0.1  # of the line, for all who wait and have no turn
FLOOR_S = 2.0  # on a slow line more: a chunk of each gets through so often, so that no request looks dead
CHANGED = 0.1  # a lease that differs by more is told at once
STRETCH_S = 2.0  # senders report in lumps


@dataclass(slots=True)
class Sender:
    wants: LineWants
    heard_at: float
    leased: LineLease | None = None


@dataclass(slots=True)
class OwnedLine:
    """One direction between two sites."""

    senders: dict[Peer, Sender] = field(default_factory=dict)
    capacity: Capacity = field(default_factory=lambda: Capacity(STRETCH_S))
    small_since: float | None = None  # something small waits, at whichever sender
    busy_since: float | None = None  # bulk waits, at whichever sender; counted up to here

    def bytes_per_s(self) -> float:
        """The best that was seen of all together, or of one; 0: nothing yet."""
        alone = max((sender.wants.bytes_per_s for sender in self.senders.values()), default=0.0)
        return max(self.capacity.bytes_per_s, alone)

    def beside_small(self, now: float) -> float:
        """The part of the line that bulk may have if something small waits."""
        if not any(sender.wants.small_bytes for sender in self.senders.values()):
            self.small_since = None
        elif self.small_since is None:
            self.small_since = now
        first = self.small_since is not None and now - self.small_since < FIRST_S
        return FIRST_SMALL if first else BESIDE_SMALL


class LineOwner:
    """`handle` what a sender wants, `tick` now and then; both give the leases to send."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, str], OwnedLine] = {}

    def handle(self, sender: Peer, wants: LineWants, now: float) -> list[Effect]:
        """The sender is always answered; others where their lease changes by much."""
        line = self.lines.setdefault((sender.site, wants.site), OwnedLine())
        known = line.senders.get(sender)
        if known:
            self._measure(line, wants.delivered_bytes - known.wants.delivered_bytes, now)
            known.wants, known.heard_at = wants, now
        else:
            line.senders[sender] = Sender(wants, now)
        return self._lease(line, now, answered=sender)

    def tick(self, now: float) -> list[Effect]:
        """Whoever has gone silent leaves his part to the others."""
        effects: list[Effect] = []
        for pair, line in list(self.lines.items()):
            gone = [peer for peer, sender in line.senders.items() if now - sender.heard_at > SILENT_S]
            for peer in gone:
                del line.senders[peer]
            if gone and line.senders:
                effects += self._lease(line, now)
            elif not line.senders:
                line.busy_since = line.small_since = None
            if not line.senders and not line.capacity.bytes_per_s:
                del self.lines[pair]
        return effects

    def _measure(self, line: OwnedLine, count: int, now: float) -> None:
        busy = count >= 0 and any(sender.wants.bulk for sender in line.senders.values())
        if busy and line.busy_since is not None:
            line.capacity.carried(count, now - line.busy_since)
        line.busy_since = now if busy else None

    # -- who gets how much --------------------------------------------------------------------------------------------

    def _lease(self, line: OwnedLine, now: float, answered: Peer | None = None) -> list[Effect]:
        wanted = {peer: sender.wants for peer, sender in line.senders.items()}
        rates = grants(wanted, line.bytes_per_s(), line.beside_small(now))
        waiting = [peer for peer, wants in wanted.items() if wants.bulk]
        paced = sum(rates[peer] for peer in waiting)
        known = line.capacity.bytes_per_s > 0  # else what leases let through is better than nothing
        line.capacity.paced_at = paced if paced and known else math.inf
        share = line.bytes_per_s() / len(waiting) if len(waiting) > 1 else 0.0
        effects: list[Effect] = []
        for peer, sender in line.senders.items():
            rate = 0.0 if math.isinf(rates[peer]) else rates[peer]
            lease = LineLease(sender.wants.site, round(rate), round(share), LEASE_S)
            if peer == answered or _differ(sender.leased, lease):
                sender.leased = lease
                effects.append(Send(peer, lease))
                effects.append(Count("pdd_line_leases_total", (("site", lease.site),)))
        return effects


def grants(
    wanted: dict[Peer, LineWants], line_bytes_per_s: float, beside_small: float = BESIDE_SMALL
) -> dict[Peer, float]:
    """Bytes a second for each sender's bulk; infinite: as the line allows."""
    bulk = {peer: wants for peer, wants in wanted.items() if wants.bulk}
    small = {peer for peer, wants in wanted.items() if wants.small_bytes}
    if not line_bytes_per_s or (len(bulk) <= 1 and small <= bulk.keys()):
        return dict.fromkeys(wanted, math.inf)  # who has both keeps room for his own
    budget = AHEAD * line_bytes_per_s
    if max(wants.queue_s for wants in wanted.values()) > QUEUE_LONG_S:
        budget = DRAINING * line_bytes_per_s
    if small:
        budget = beside_small * line_bytes_per_s
    floor = _floor(budget, len(bulk)) if bulk else 0.0
    granted = dict.fromkeys(bulk, floor)
    left = budget - floor * len(bulk)
    turns = [(peer, one) for peer, wants in bulk.items() for one in wants.bulk]
    turns.sort(key=lambda pair: turn(pair[1].remaining_bytes, pair[1].waited_s, line_bytes_per_s, pair[1].warm_up))
    for peer, one in turns:
        part = min(left, one.ready_bytes / HORIZON_S)
        granted[peer] += part
        left -= part
    # What nobody needs is anybody's; who has no bulk is held to nothing.
    return {peer: granted[peer] + left if peer in bulk else math.inf for peer in wanted}


def _floor(budget: float, senders: int) -> float:
    return min(max(FLOOR_SHARE * budget / senders, CHUNK_BYTES_MIN / FLOOR_S), budget / senders)


def _differ(old: LineLease | None, new: LineLease) -> bool:
    if old is None or not (old.bytes_per_s and new.bytes_per_s):
        return old is None or bool(old.bytes_per_s) != bool(new.bytes_per_s)
    return abs(new.bytes_per_s - old.bytes_per_s) > CHANGED * old.bytes_per_s
