"""To the router: answers to its commands, outputs, beats, and what the index found."""

import msgspec

from ..ids import Epoch, Peer, RequestId
from .base import Message, Written


class Accepted(Message, frozen=True, array_like=True, tag=True):
    """`have`: prompt tokens found in the worker's cache. `beat`: the last beat sent, so that an older one proves no loss."""

    request: RequestId
    epoch: Epoch
    have: int
    beat: int


class Refused(Message, frozen=True, array_like=True, tag=True):
    request: RequestId
    epoch: Epoch
    reason: str


class Released(Message, frozen=True, array_like=True, tag=True):
    request: RequestId
    epoch: Epoch


class Tokens(Message, frozen=True, array_like=True, tag=True):
    """All that one engine step wrote for this destination. `own` is false where the sender repeats another's outputs."""

    written: tuple[Written, ...]
    own: bool = True


class CutAnswer(Message, frozen=True, array_like=True, tag=True):
    request: RequestId
    epoch: Epoch
    promised: bool


class KvDelivered(Message, frozen=True, array_like=True, tag=True):
    """P's report of one finished transfer: what crossed, and the seconds from its first byte to the receiver's last answer."""

    request: RequestId
    epoch: Epoch
    receiver: Peer
    tokens: int
    payload_bytes: int
    seconds: float


class HeldRequest(msgspec.Struct, frozen=True, array_like=True):
    request: RequestId
    epoch: Epoch
    router: Peer
    phase: str
    whole: bool  # the prompt's KV is complete here
    next_index: int
    fence: int | None
    progress: int  # grows while anything moves: computed, landed, written; a long prefill is not a death


class EngineLoad(msgspec.Struct, frozen=True, array_like=True):
    running: int = 0  # sequences in the batch
    waiting_tokens: int = 0  # prompt tokens queued or not computed yet
    free_pages: int = 0
    total_pages: int = 0
    prefill_tokens_per_s: float = 0.0  # measured; 0: not yet
    step_s: float = 0.0  # a decode step, measured


class LineState(msgspec.Struct, frozen=True, array_like=True):
    """One sender's view of the way to one site. Measured, never configured."""

    site: str
    bytes_per_s: float
    rtt_s: float
    queued_bytes: int
    queue_s: float = 0.0  # what a byte waits on the way beyond the round trip
    loss: float = 0.0  # the share of segments that were sent again


class WorkerCard(msgspec.Struct, frozen=True, array_like=True):
    """What pairing needs to know of a worker. Fingerprints must agree within a cast; the rest is converted or bounded."""

    fingerprint: str  # weights, tokenizer and chat template, canonical KV shape, protocol version
    max_context: int
    max_sequences: int
    bytes_per_token: int
    kv_address: str = ""  # host:port where this worker takes KV
    features: tuple[str, ...] = ()  # of core/features.py


class Beat(Message, frozen=True, array_like=True, tag=True):
    """Broadcast by each worker: who is alive, what it holds, how busy it is. `draining` workers take no new request."""

    number: int
    card: WorkerCard
    held: tuple[HeldRequest, ...]
    load: EngineLoad
    lines: tuple[LineState, ...] = ()
    draining: bool = False


class Found(Message, frozen=True, array_like=True, tag=True):
    """Blocks of the asked prefix that each live holder has, longest prefix per worker."""

    query: RequestId
    holders: tuple[tuple[str, int, int], ...]  # (worker name, incarnation, blocks)
