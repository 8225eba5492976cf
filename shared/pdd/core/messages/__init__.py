"""Every message on the bus, grouped by who receives it. Token ids only: text never leaves the router service.

An `Envelope` names both ends with their incarnations; a receiver drops what was meant for, or comes from, another life.
Ranges are half open. An output index counts from the original prompt's end: index 0 is the token that P speaks.
"""

import msgspec

from ..ids import Peer, Role
from .base import Cast, Message, Written
from .between_workers import MainReady, Taken, Ticket, Yield
from .line import WANTS_MAX, LineLease, LineWants, Waiting
from .prefix_index import BlocksChanged, Lookup, Snapshot, SnapshotWanted
from .to_router import (
    Accepted,
    Beat,
    CutAnswer,
    EngineLoad,
    Found,
    HeldRequest,
    KvDelivered,
    LineState,
    Refused,
    Released,
    Tokens,
    WorkerCard,
)
from .to_workers import Ask, Assignment, Cut, PrepareMain, PrepareRelay, Release, Renew, StartPrefill, StopSending

AnyMessage = (
    StartPrefill | PrepareRelay | PrepareMain | Release | Ask | Cut | StopSending | Renew
    | Accepted | Refused | Released | Tokens | CutAnswer | KvDelivered | Beat | Found
    | Ticket | MainReady | Yield | Taken
    | BlocksChanged | SnapshotWanted | Snapshot | Lookup
    | LineWants | LineLease
)  # fmt: skip


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """`to` is None for a broadcast (Beat, BlocksChanged)."""

    sender: Peer
    to: Peer | None
    message: AnyMessage

    @property
    def role(self) -> Role:
        return self.sender.role


__all__ = [
    "WANTS_MAX",
    "Accepted",
    "AnyMessage",
    "Ask",
    "Assignment",
    "Beat",
    "BlocksChanged",
    "Cast",
    "Cut",
    "CutAnswer",
    "EngineLoad",
    "Envelope",
    "Found",
    "HeldRequest",
    "KvDelivered",
    "LineLease",
    "LineState",
    "LineWants",
    "Lookup",
    "MainReady",
    "Message",
    "PrepareMain",
    "PrepareRelay",
    "Refused",
    "Release",
    "Released",
    "Renew",
    "Snapshot",
    "SnapshotWanted",
    "StartPrefill",
    "StopSending",
    "Taken",
    "Ticket",
    "Tokens",
    "Waiting",
    "WorkerCard",
    "Written",
    "Yield",
]
