"""To the prefix index, and its question to a worker: who holds which blocks of KV."""

from ..ids import RequestId
from .base import Message


class BlocksChanged(Message, frozen=True, array_like=True, tag=True):
    """Broadcast by each worker, numbered without gaps from 1. Hashes are packed, 16 bytes each."""

    number: int
    stored: bytes
    removed: bytes


class SnapshotWanted(Message, frozen=True, array_like=True, tag=True): ...


class Snapshot(Message, frozen=True, array_like=True, tag=True):
    """Everything the worker holds, as of change `number`."""

    number: int
    blocks: bytes


class Lookup(Message, frozen=True, array_like=True, tag=True):
    """Router to index: who holds how much of this chain of block hashes?"""

    query: RequestId
    blocks: bytes
