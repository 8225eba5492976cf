"""How KV crosses: streams, buffers, limits, pacing, packing. One table for every worker; docs/operations.md says it in words."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LineSettings:
    """Congestion controls are the kernel's names; "" or an unknown one: the kernel's choice. Buffers in bytes; 0: sized by the kernel."""

    streams_far: int = 3  # for bulk to another site, beside one for small transfers
    streams_near: int = 2
    congestion_far: str = "bbr"  # loses little to loss, keeps its rate over idle times
    congestion_near: str = "cubic"  # on a short way it needs less of the processor
    buffer_bytes: int = 0
    credit_bytes: int = 256 << 20  # what one sender may have unanswered at a receiver
    idle_s: float = 120.0  # a connection without transfers is closed after so long
    connections_max: int = 256  # at a receiver
    half_open_max: int = 32  # of them, before they have greeted
    paced: bool = True  # bulk makes room for what is small, and keeps the line's queue short
    packed: bool = True  # pack KV for other sites where that is faster
    near: Literal["tcp", "nixl"] = "tcp"  # nixl: RDMA or shared memory, where P and RLD both have it
    leased: bool = True  # ask the router, which owns the line, how fast bulk may leave

    def __post_init__(self) -> None:
        if self.near not in ("tcp", "nixl"):
            raise ValueError("near must be tcp or nixl")
        for name in ("streams_far", "streams_near", "connections_max", "half_open_max"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if min(self.buffer_bytes, self.credit_bytes, self.idle_s) < 0:
            raise ValueError("buffer_bytes, credit_bytes and idle_s must not be negative")
