"""What can happen to a machine. Facts, in the past tense. Every result of I/O comes back as one of these."""

from dataclasses import dataclass

from .ids import BlockHash, Key, Peer, RequestId, TransferId
from .messages import EngineLoad, LineState, LineWants, Message, Written
from .sampling import Sampling


@dataclass(frozen=True, slots=True)
class Event: ...


@dataclass(frozen=True, slots=True)
class TimerFired(Event): ...


@dataclass(frozen=True, slots=True)
class Heard(Event):
    """A message came over the bus. The shell filters nothing: the machine decides what is stale."""

    sender: Peer
    to: Peer | None
    message: Message


# -- from the engine --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SequenceOpened(Event):
    """The first `have` ids are in pinned pages."""

    key: Key
    have: int


@dataclass(frozen=True, slots=True)
class SequenceRefused(Event):
    key: Key
    reason: str


@dataclass(frozen=True, slots=True)
class KvImported(Event):
    """Staged KV is in pages; its staging memory is free again."""

    key: Key


@dataclass(frozen=True, slots=True)
class KvImportFailed(Event):
    key: Key
    reason: str


@dataclass(frozen=True, slots=True)
class StepDone(Event):
    """One engine step. `computed`: sequences whose KV grew, with the number of ids now computed, outputs included.

    `stored` and `removed` name whole hash blocks that entered and left the prefix cache since the last step. Also sent when
    the cache changes outside a step.
    """

    computed: tuple[tuple[Key, int], ...] = ()
    written: tuple[Written, ...] = ()
    stored: tuple[BlockHash, ...] = ()
    removed: tuple[BlockHash, ...] = ()
    load: EngineLoad = EngineLoad()
    started_at: float = 0.0


# -- from the KV link, at the receiver --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KvExpected(Event):
    """Staging memory is reserved: a ticket may go out."""

    transfer: TransferId
    address: str


@dataclass(frozen=True, slots=True)
class KvRefused(Event):
    """No staging memory; the machine may ask again."""

    transfer: TransferId
    reason: str


@dataclass(frozen=True, slots=True)
class KvLanded(Event):
    """Tokens [start, stop) are in staging, checksum verified."""

    transfer: TransferId
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class KvDamaged(Event):
    """A frame of this transfer was dropped: bad checksum, bad range, cut short. Doubles are dropped and counted by the link itself."""

    transfer: TransferId
    reason: str


@dataclass(frozen=True, slots=True)
class KvClosed(Event):
    """The closing frame: `closing` is an encoded `Written` of P (token 0)."""

    transfer: TransferId
    closing: bytes


# -- from the KV link, at the sender ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KvAcked(Event):
    """The receiver has verified [start, stop)."""

    transfer: TransferId
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class KvCloseAcked(Event):
    """The receiver has the closing frame. `seconds` from the first payload byte sent; `payload_bytes` as crossed."""

    transfer: TransferId
    payload_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TransferFailed(Event):
    """The connection is gone or refused; what was not acked may be lost. The link has forgotten the transfer."""

    transfer: TransferId
    reason: str


@dataclass(frozen=True, slots=True)
class LineMeasured(Event):
    line: LineState


@dataclass(frozen=True, slots=True)
class LineWanted(Event):
    """What waits here for one site, for whoever owns the line to it."""

    wants: LineWants


# -- at the router, from the text layer -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestSubmitted(Event):
    request: RequestId
    ids: tuple[int, ...]
    sampling: Sampling
    cache_salt: str = ""
    traceparent: str = ""
    parent_span: str = ""  # the client's own span, in hex, if it sent one
    handover_after: int = 0  # test hook; 0: the policy decides
    route: str = ""  # test hook; "": routing decides


@dataclass(frozen=True, slots=True)
class RequestEnded(Event):
    """The text layer is done with it: a stop string (`stop`) or a client that left (`gone`)."""

    request: RequestId
    reason: str


# -- at the prefix index, from its store ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PrefixFound(Event):
    """`blocks` by holder key, as given to `StoreBlocks`."""

    query: RequestId
    asker: Peer
    holders: tuple[tuple[str, int, int], ...]  # (worker name, incarnation, blocks)


@dataclass(frozen=True, slots=True)
class StoreFailed(Event):
    """Redis did not answer. `holder`: whose change may be lost (None: a lookup)."""

    reason: str
    holder: Peer | None = None
    query: RequestId | None = None
    asker: Peer | None = None


@dataclass(frozen=True, slots=True)
class DrainWanted(Event):
    """SIGTERM, or an operator: finish what runs, take nothing new."""
