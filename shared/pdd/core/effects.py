"""What a machine asks of the world. Imperatives: carried out at once or queued, never answered in place."""

from dataclasses import dataclass, field

from .ids import BlockHash, Epoch, Key, Peer, RequestId, Role, TransferId
from .messages import Message, Written
from .sampling import Finish, Sampling


@dataclass(frozen=True, slots=True)
class Effect: ...


# -- bus --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send(Effect):
    to: Peer
    message: Message
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Broadcast(Effect):
    """To whoever listens for this kind: routers and indexes."""

    message: Message


# -- engine -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenSequence(Effect):
    """Answered by SequenceOpened or SequenceRefused. The longest cached prefix is pinned.

    `compute_last`: the last id will be computed here (P, or a speaker without P), so at most len(ids) - 1 come from the cache.
    """

    key: Key
    ids: tuple[int, ...]
    prompt_len: int
    sampling: Sampling
    cache_salt: str
    compute_last: bool


@dataclass(frozen=True, slots=True)
class ImportKv(Effect):
    """Write the staged KV of `transfer` into pages of `key`. Answered by KvImported or KvImportFailed."""

    key: Key
    transfer: TransferId


@dataclass(frozen=True, slots=True)
class AppendIds(Effect):
    """Outputs written elsewhere: the engine extends over them inside its running batch, without sampling."""

    key: Key
    start: int  # output index of ids[0]; ids already known are skipped
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Speak(Effect):
    """Compute what is missing, then sample. `stop`: output index before which to pause (None: until the sampling's own end)."""

    key: Key
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Hush(Effect):
    """Stop sampling, keep KV, leave the batch. A step under way may still write one token."""

    key: Key


@dataclass(frozen=True, slots=True)
class CloseSequence(Effect):
    """Unpin and free; computed whole pages stay in the prefix cache. Unknown keys are fine."""

    key: Key


# -- KV link, at the receiver -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExpectKv(Effect):
    """Reserve staging for tokens [start, stop). Answered by KvExpected or KvRefused. Idempotent."""

    transfer: TransferId
    epoch: Epoch
    secret: bytes
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class DropKv(Effect):
    """Forget the transfer, free its staging; late frames of it are refused and counted. Unknown transfers are fine."""

    transfer: TransferId


# -- KV link, at the sender -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenTransfer(Effect):
    """`near` transfers stay in the site; the others cross the WAN, the shortest first. `tokens`: how many it will be offered in
    all (0: not known). `warm_up`: nobody waits for it, so that it comes after all others.
    """

    transfer: TransferId
    key: Key
    receiver: Peer
    address: str
    secret: bytes
    traceparent: str
    near: bool
    tokens: int = 0
    warm_up: bool = False


@dataclass(frozen=True, slots=True)
class OfferKv(Effect):
    """Computed tokens [start, stop) may leave. The link asks the engine for the bytes when the socket has room."""

    transfer: TransferId
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class CloseTransfer(Effect):
    """After all offered ranges, send the closing frame."""

    transfer: TransferId
    closing: bytes


@dataclass(frozen=True, slots=True)
class CancelTransfer(Effect):
    """Stop within one chunk. Unknown transfers are fine."""

    transfer: TransferId


@dataclass(frozen=True, slots=True)
class PaceLine(Effect):
    """Up to `until` bulk to that site leaves no faster than the lease, then than the share. Infinite: as the line allows."""

    site: str
    lease_bytes_per_s: float
    share_bytes_per_s: float
    until: float


# -- text layer, at the router ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deliver(Effect):
    """Outputs for the client, each index once and in order."""

    request: RequestId
    written: Written
    speaker: Role


@dataclass(frozen=True, slots=True)
class Complete(Effect):
    request: RequestId
    finish: Finish
    report: "RequestReport"


@dataclass(frozen=True, slots=True)
class Reject(Effect):
    """Before anything was streamed, or when recovery is exhausted. `code` as OpenAI names it; `status` is HTTP's."""

    request: RequestId
    status: int
    code: str
    message: str
    retry_after_s: float | None = None


@dataclass(slots=True)
class RequestReport:
    """How one request went, for the response field, the demo and the traces. Seconds count from submission."""

    route: str = ""
    terms: dict[str, float] = field(default_factory=dict)  # named parts of the chosen route's score, seconds
    others: dict[str, float] = field(default_factory=dict)  # predicted seconds of the routes not taken
    prompt_tokens: int = 0
    ids: list[int] = field(default_factory=list)  # every output, in order
    hit: dict[str, int] = field(default_factory=dict)  # cached prompt tokens by role
    workers: dict[str, str] = field(default_factory=dict)
    spoke: list[tuple[str, int, int]] = field(default_factory=list)  # (role, start, stop)
    token_at_s: list[float] = field(default_factory=list)
    transfers: list[dict[str, float | str]] = field(default_factory=list)
    epochs: int = 1
    fence: int | None = None
    refusals: list[str] = field(default_factory=list)  # worker: why it would not


# -- prefix store -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreBlocks(Effect):
    holder: Peer
    stored: tuple[BlockHash, ...]
    removed: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class ReplaceBlocks(Effect):
    """Forget what this name held, in any life; then hold exactly these."""

    holder: Peer
    blocks: tuple[BlockHash, ...]


@dataclass(frozen=True, slots=True)
class KeepHolder(Effect):
    """The holder is alive: its claims last `ttl_s` more."""

    holder: Peer
    ttl_s: float


@dataclass(frozen=True, slots=True)
class FindPrefix(Effect):
    """Answered by PrefixFound or StoreFailed."""

    query: RequestId
    asker: Peer
    blocks: tuple[BlockHash, ...]


# -- notes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Count(Effect):
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    amount: float = 1


@dataclass(frozen=True, slots=True)
class Gauge(Effect):
    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Observe(Effect):
    """One sample of a histogram, in the unit its name ends with."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Span(Effect):
    """A finished stretch of a request's life. Times are the machine's `now`; the adapter maps them to the wall clock.

    `root` marks the router's own span, whose id is the one in `traceparent`; all others are its children. `parent`: of a root, the
    client's span, in hex; "" where the client sent none.
    """

    name: str
    traceparent: str
    start: float
    stop: float
    attributes: tuple[tuple[str, str | int | float], ...] = ()
    root: bool = False
    parent: str = ""
