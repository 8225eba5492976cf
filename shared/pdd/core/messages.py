"""Every message on the bus, grouped by who receives it. Token ids only: text never leaves the router service.

An `Envelope` names both ends with their incarnations; a receiver drops what was meant for, or comes from, another life.
Ranges are half open. An output index counts from the original prompt's end: index 0 is the token that P speaks.
"""

import msgspec

from .ids import Epoch, Peer, RequestId, Role, TransferId
from .sampling import Finish, Sampling, TokenLogprobs


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True): ...


class Cast(msgspec.Struct, frozen=True, array_like=True):
    """Who plays what in one epoch. Without P the first speaker computes the prompt itself; without RLD, P's closing frame is its yield."""

    prefill: Peer | None = None
    relay: Peer | None = None
    main: Peer | None = None

    def members(self) -> list[Peer]:
        return [peer for peer in (self.prefill, self.relay, self.main) if peer]


class Written(msgspec.Struct, frozen=True, array_like=True):
    """Outputs [start, start + len(ids)) of one request. `logprobs` is empty or as long as `ids`. `finish` is set with the very last."""

    request: RequestId
    epoch: Epoch
    start: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish: Finish | None = None

    @property
    def stop(self) -> int:
        return self.start + len(self.ids)


# -- router to workers ------------------------------------------------------------------------------------------------


class Assignment(Message, frozen=True, array_like=True, tag=True):
    """One role in one epoch of a request. `ids` are the prompt and the outputs that the client already has (`base` of them).

    `handover_after` forces the fence (0: the policy decides); `relay_bound` is the most outputs RLD may write beyond `base`.
    """

    request: RequestId
    epoch: Epoch
    cast: Cast
    ids: tuple[int, ...]
    prompt_len: int
    sampling: Sampling
    cache_salt: str = ""
    traceparent: str = ""
    policy: str = "one_shot"
    handover_after: int = 0
    relay_bound: int = 0  # 0: none
    rtt_s: float = 0.0  # between RLD's site and MD's, as P measures it
    warm_up: bool = False  # nobody waits: MD takes the prompt and does not speak, and a worker may give it up

    @property
    def base(self) -> int:
        return len(self.ids) - self.prompt_len


class StartPrefill(Assignment, frozen=True, array_like=True, tag=True): ...


class PrepareRelay(Assignment, frozen=True, array_like=True, tag=True): ...


class PrepareMain(Assignment, frozen=True, array_like=True, tag=True): ...


class Release(Message, frozen=True, array_like=True, tag=True):
    """Free everything of this request up to this epoch. Repeated until `Released`."""

    request: RequestId
    epoch: Epoch


class Ask(Message, frozen=True, array_like=True, tag=True):
    """Send outputs from `start` on again, whoever wrote them."""

    request: RequestId
    epoch: Epoch
    start: int


class Cut(Message, frozen=True, array_like=True, tag=True):
    """Router to RLD: promise never to yield, so that the transfer to MD may be dropped."""

    request: RequestId
    epoch: Epoch


class StopSending(Message, frozen=True, array_like=True, tag=True):
    """Router to P: this receiver has left the cast."""

    request: RequestId
    epoch: Epoch
    receiver: Peer


class Renew(Message, frozen=True, array_like=True, tag=True):
    """The answer to a beat: for each listed request of this router its current epoch, or 0 where it has ended."""

    epochs: dict[RequestId, Epoch]


# -- workers to the router --------------------------------------------------------------------------------------------


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


# -- between workers --------------------------------------------------------------------------------------------------


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


# -- the prefix index -------------------------------------------------------------------------------------------------


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


# -- the line's owner -------------------------------------------------------------------------------------------------


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """One transfer that waits to cross. `ready_bytes` of the remaining ones are computed; nobody waits for a `warm_up`."""

    remaining_bytes: int
    ready_bytes: int
    waited_s: float
    warm_up: bool = False


class LineWants(Message, frozen=True, array_like=True, tag=True):
    """P to the router that owns the line: what waits here for one site, and how the line fares. Repeated while anything waits.

    `bulk`: the shortest first, and no more than WANTS_MAX. `small_bytes`: of small transfers, which no lease holds back.
    """

    site: str
    bytes_per_s: float  # the most it carried for us lately
    delivered_bytes: int  # ever, as they crossed; differences count
    queue_s: float
    small_bytes: int
    bulk: tuple[Waiting, ...]


class LineLease(Message, frozen=True, array_like=True, tag=True):
    """For `ttl_s`, bulk to that site leaves no faster than this (0: as the line allows); after that, as the equal share."""

    site: str
    bytes_per_s: float
    share_bytes_per_s: float
    ttl_s: float


WANTS_MAX = 16


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
