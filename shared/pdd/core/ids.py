"""Names for things, so that a token index is never mistaken for a byte count, nor one life of a worker for the next."""

from enum import StrEnum
from typing import NamedTuple, NewType

import msgspec

RequestId = NewType("RequestId", str)
Epoch = NewType("Epoch", int)  # raised by the router alone; one epoch binds one cast
TransferId = NewType("TransferId", str)  # one request's KV on its way to one receiver; stable over reconnects
BlockHash = NewType("BlockHash", bytes)  # 16 bytes, chained: names a whole prefix, see core/blocks.py


class Role(StrEnum):
    ROUTER = "router"
    PREFILL = "prefill"
    RELAY = "relay_decode"
    MAIN = "main_decode"
    INDEX = "prefix_index"


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """One life of one process. A restart under the same name is another peer: its incarnation is higher."""

    site: str
    role: Role
    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.name}@{self.site}#{self.incarnation}"


class Key(NamedTuple):
    """What an engine and a KV link hold things under. Two epochs of one request never share an entry."""

    request: RequestId
    epoch: Epoch
