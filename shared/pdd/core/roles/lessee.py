"""P's side of the line's leases: what the link wants goes to the router that owns the line, what that grants goes to the link."""

import math
from collections.abc import Iterable

from ..effects import Effect, PaceLine, Send
from ..events import LineWanted
from ..ids import Peer
from ..messages import LineLease


class Lessee:
    """Where several routers are at work, all senders ask the first by name, so that one line has one owner."""

    def __init__(self) -> None:
        self._owner: Peer | None = None

    def wanted(self, event: LineWanted, routers: Iterable[Peer]) -> list[Effect]:
        """`routers`: those we work for now. With none of them there is nobody to ask, and nothing much to send."""
        self._owner = min(routers, key=lambda peer: peer.name, default=self._owner)
        return [Send(self._owner, event.wants)] if self._owner else []

    def leased(self, sender: Peer, lease: LineLease, now: float) -> list[Effect]:
        if sender != self._owner:
            return []
        share = lease.share_bytes_per_s or math.inf
        return [PaceLine(lease.site, lease.bytes_per_s or math.inf, share, now + lease.ttl_s)]
