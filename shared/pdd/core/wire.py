"""KV frames, sans I/O: what one link says to another over any ordered stream of bytes, versioned.

A frame is a header of 24 bytes, msgpack metadata, and for a chunk its payload. The header's check covers header and metadata;
the chunk's own checksum covers its payload. Payloads never pass through the decoder's buffer: it names their length, and the
reader receives them where they belong. Lengths are checked before anything is allocated; whatever is wrong raises FrameError.

    | magic 4 | kind 1 | zero 3 | metadata length 4 | payload length 4 | check 8 | metadata | payload |   little endian
"""

import struct
from enum import StrEnum
from typing import Annotated, Final, Literal

import msgspec
import xxhash

from .errors import FrameError
from .ids import Epoch, Peer, TransferId

PROTOCOL: Final = 1
META_MAX: Final = 64 << 10
PAYLOAD_MAX: Final = 64 << 20  # a decoder may be told less

_MAGIC: Final = b"PDDK"
_LENGTHS: Final = struct.Struct("<4sB3xII")
_CHECK: Final = struct.Struct("<Q")
HEADER_BYTES: Final = _LENGTHS.size + _CHECK.size

Index = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
Size = Annotated[int, msgspec.Meta(gt=0, le=2**20)]
DtypeName = Literal["float32", "bfloat16", "float16"]


class Reason(StrEnum):
    """Why a receiver drops a frame. The first group ends a connection, the second a transfer, the third one chunk."""

    VERSION = "version"
    FINGERPRINT = "fingerprint"
    BAD_FRAME = "bad_frame"
    TLS = "tls"  # a stranger, or one of ours without a certificate

    RECEIVER = "receiver"  # meant for another life of this worker
    UNKNOWN = "unknown"  # no such transfer is expected, or not on this connection
    SECRET = "secret"
    EPOCH = "epoch"
    SHAPE = "shape"
    MEMORY = "memory"
    LIMIT = "limit"

    RANGE = "range"
    LENGTH = "length"
    CHECKSUM = "checksum"
    CODEC = "codec"  # not packed as it says
    SHORT = "short"  # the connection ended inside the payload
    DOUBLE = "double"
    OVERLAP = "overlap"  # part of it had landed; the rest was kept
    BUSY = "busy"  # another connection is writing there


ENDS_CHUNK: Final = frozenset({Reason.RANGE, Reason.LENGTH, Reason.CHECKSUM, Reason.CODEC, Reason.SHORT, Reason.BUSY})


class WireShape(msgspec.Struct, frozen=True, array_like=True):
    """Canonical layout of a chunk: [layers, tokens, 2 (K, V), kv_heads, head_dim], C order, little endian."""

    layers: Size
    kv_heads: Size
    head_dim: Size
    dtype: DtypeName

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim * (4 if self.dtype == "float32" else 2)


class Frame(msgspec.Struct, frozen=True, array_like=True): ...


# -- sender to receiver -----------------------------------------------------------------------------------------------


class Hello(Frame, frozen=True, array_like=True):
    """The first frame each way. The receiver answers with its own, or refuses.

    `lane`: which of the sender's connections this is; a later one of the same number takes its place. `credit_bytes`: so many
    bytes of payload may be unanswered, over all lanes (0: no bound). `codecs`: how payloads may be packed.
    """

    protocol: int
    sender: Peer
    fingerprint: str
    lane: Index = 0
    credit_bytes: Index = 0
    codecs: tuple[str, ...] = ()


class OpenFrame(Frame, frozen=True, array_like=True):
    """`attempt` tells this opening of the transfer from earlier ones: what belongs to those is void."""

    transfer: TransferId
    attempt: Index
    epoch: Epoch
    receiver: Peer
    secret: bytes
    shape: WireShape
    traceparent: str = ""


class ChunkFrame(Frame, frozen=True, array_like=True):
    """Tokens [start, stop) of layers [first_layer, stop_layer), followed by `payload_bytes` bytes whose xxh3-64 is `checksum`.

    Both are the payload's as it crosses: packed by `codec`, where one is named.
    """

    transfer: TransferId
    attempt: Index
    epoch: Epoch
    start: Index
    stop: Index
    first_layer: Index
    stop_layer: Index
    dtype: DtypeName
    checksum: Annotated[int, msgspec.Meta(ge=0)]
    payload_bytes: Index
    codec: str = ""


class CloseFrame(Frame, frozen=True, array_like=True):
    transfer: TransferId
    attempt: Index
    closing: bytes


class CancelFrame(Frame, frozen=True, array_like=True):
    transfer: TransferId
    attempt: Index


class Ping(Frame, frozen=True, array_like=True):
    number: Index


# -- receiver to sender -----------------------------------------------------------------------------------------------


class AckFrame(Frame, frozen=True, array_like=True):
    """Tokens [start, stop) are in staging, verified."""

    transfer: TransferId
    attempt: Index
    start: Index
    stop: Index


class CloseAck(Frame, frozen=True, array_like=True):
    transfer: TransferId
    attempt: Index


class Refuse(Frame, frozen=True, array_like=True):
    """The connection (no transfer), a transfer, or only a chunk of it (ENDS_CHUNK) is not taken. A range names the chunk it answers."""

    transfer: TransferId
    attempt: Index
    reason: str
    start: Index = 0
    stop: Index = 0


class Pong(Frame, frozen=True, array_like=True):
    number: Index


_KINDS: Final[dict[int, type[Frame]]] = {
    1: Hello, 2: OpenFrame, 3: ChunkFrame, 4: CloseFrame, 5: CancelFrame, 6: Ping,
    16: AckFrame, 17: CloseAck, 18: Refuse, 19: Pong,
}  # fmt: skip
_KIND_OF: Final = {frame: kind for kind, frame in _KINDS.items()}
_DECODERS: Final = {kind: msgspec.msgpack.Decoder(frame) for kind, frame in _KINDS.items()}
_ENCODER: Final = msgspec.msgpack.Encoder()


def checksum(*parts: bytes | bytearray | memoryview) -> int:
    """Of a payload in as many parts as it lies in."""
    if len(parts) == 1:
        return xxhash.xxh3_64_intdigest(parts[0])
    whole = xxhash.xxh3_64()
    for part in parts:
        whole.update(part)
    return whole.intdigest()


def encode(frame: Frame) -> bytes:
    """Header and metadata; a chunk's payload follows as it lies. Raises FrameError where the metadata is too long."""
    meta = _ENCODER.encode(frame)
    if len(meta) > META_MAX:
        raise FrameError(f"{type(frame).__name__} has {len(meta)} bytes of metadata, the limit is {META_MAX}")
    payload = frame.payload_bytes if isinstance(frame, ChunkFrame) else 0
    lengths = _LENGTHS.pack(_MAGIC, _KIND_OF[type(frame)], len(meta), payload)
    return b"".join((lengths, _CHECK.pack(_check(lengths, meta)), meta))


def _check(lengths: bytes | bytearray, meta: bytes | bytearray) -> int:
    return xxhash.xxh3_64_intdigest(meta, seed=xxhash.xxh3_64_intdigest(lengths))


class Decoder:
    """Bytes in, frames out. After a ChunkFrame, `payload_left` bytes of payload are next in the stream.

    A reader that has a place for them reads exactly `wanted` bytes for each `feed`, receives the payload past the decoder and
    says so with `took`. Fed more than `wanted`, the decoder gives payload pieces as views of what it was fed.
    """

    def __init__(self, payload_max: int = PAYLOAD_MAX) -> None:
        self._payload_max = payload_max
        self._buffer = bytearray()  # never more than a header and its metadata
        self._kind = 0  # of the frame whose metadata is next; 0: a header is next
        self._meta_bytes = 0
        self._payload_bytes = 0
        self._broken: FrameError | None = None
        self.payload_left = 0

    @property
    def wanted(self) -> int:
        """Bytes until a header or a frame is complete; 0 while payload is next."""
        if self.payload_left:
            return 0
        return HEADER_BYTES + (self._meta_bytes if self._kind else 0) - len(self._buffer)

    @property
    def between_frames(self) -> bool:
        return not (self._buffer or self._kind or self.payload_left)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Frame | memoryview]:
        """Frames, and payload pieces as views of `data`. Raises FrameError, and then for ever: the stream is lost."""
        if self._broken:
            raise self._broken
        found: list[Frame | memoryview] = []
        rest = memoryview(data)
        try:
            while rest:
                rest = self._step(rest, found)
        except FrameError as error:
            self._broken = error
            raise
        return found

    def took(self, count: int) -> None:
        """`count` bytes of payload were received past the decoder."""
        if count > self.payload_left:
            raise ValueError(f"{count} bytes taken of a payload that has {self.payload_left} left")
        self.payload_left -= count

    def _step(self, rest: memoryview, found: list[Frame | memoryview]) -> memoryview:
        if self.payload_left:
            piece = rest[: self.payload_left]
            found.append(piece)
            self.took(len(piece))
            return rest[len(piece) :]
        used = min(self.wanted, len(rest))
        self._buffer += rest[:used]
        if not self.wanted and not self._kind:
            self._read_header()
        if not self.wanted:
            found.append(self._read_frame())
        return rest[used:]

    def _read_header(self) -> None:
        magic, kind, meta_bytes, payload_bytes = _LENGTHS.unpack_from(self._buffer)
        if magic != _MAGIC:
            raise FrameError("these bytes are no KV frame")
        if kind not in _KINDS:
            raise FrameError(f"unknown kind of frame: {kind}")
        if not 0 < meta_bytes <= META_MAX:
            raise FrameError(f"{meta_bytes} bytes of metadata, the limit is {META_MAX}")
        limit = self._payload_max if _KINDS[kind] is ChunkFrame else 0
        if payload_bytes > limit:
            raise FrameError(f"{payload_bytes} bytes of payload, the limit is {limit}")
        self._kind, self._meta_bytes, self._payload_bytes = kind, meta_bytes, payload_bytes

    def _read_frame(self) -> Frame:
        lengths, meta = self._buffer[: _LENGTHS.size], self._buffer[HEADER_BYTES:]
        if _CHECK.unpack_from(self._buffer, _LENGTHS.size)[0] != _check(lengths, meta):
            raise FrameError("header or metadata is damaged")
        try:
            frame = _DECODERS[self._kind].decode(meta)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise FrameError(f"{_KINDS[self._kind].__name__}: {error}") from error
        if isinstance(frame, ChunkFrame) and frame.payload_bytes != self._payload_bytes:
            raise FrameError("a chunk's two payload lengths differ")
        self._buffer.clear()
        self._kind, self.payload_left = 0, self._payload_bytes
        self._payload_bytes = 0
        return frame
