"""Between workers: KV is asked for, and the pen is passed. When is decided in core/roles/relaying.py, `_consider`."""

from ..ids import Epoch, RequestId, TransferId
from .base import Message, Written


class Ticket(Message, frozen=True, array_like=True, tag=True):
    """RLD or MD to P: send these token ranges here. Repeated until whole; a higher `serial` says: what was under way is void.

    `missing` may be empty: then only the closing frame, which carries token 0, is wanted.
    """

    request: RequestId
    epoch: Epoch
    transfer: TransferId
    serial: int
    missing: tuple[tuple[int, int], ...]
    address: str
    secret: bytes


class MainReady(Message, frozen=True, array_like=True, tag=True):
    """MD to RLD, repeated as state until a Yield comes: the prompt is whole here, outputs before `known` are extended."""

    request: RequestId
    epoch: Epoch
    known: int


class Yield(Message, frozen=True, array_like=True, tag=True):
    """RLD to MD and router, repeated until each answers: outputs [base, fence) are these, MD speaks from the fence."""

    request: RequestId
    epoch: Epoch
    fence: int
    written: Written


class Taken(Message, frozen=True, array_like=True, tag=True):
    """The answer to a Yield, by MD and by the router."""

    request: RequestId
    epoch: Epoch
