"""The frame codec, judged by its laws: fed in any pieces it says the same, and nothing but FrameError comes of bad bytes."""

import contextlib
import struct

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.errors import FrameError
from pdd.core.ids import Epoch, Peer, Role, TransferId
from pdd.core.wire import (
    HEADER_BYTES,
    META_MAX,
    PROTOCOL,
    AckFrame,
    CancelFrame,
    ChunkFrame,
    CloseAck,
    CloseFrame,
    Decoder,
    Frame,
    Hello,
    OpenFrame,
    Ping,
    Pong,
    Reason,
    Refuse,
    WireShape,
    checksum,
    encode,
)

PEER = Peer("b", Role.MAIN, "md-0", 3)
SHAPE = WireShape(4, 2, 32, "bfloat16")
T = TransferId("r1.1.md-0.3")

index = st.integers(0, 2**40)
texts = st.text(max_size=40)
dtypes = st.sampled_from(["float32", "bfloat16", "float16"])
shapes = st.builds(WireShape, st.integers(1, 200), st.integers(1, 64), st.integers(1, 256), dtypes)
peers = st.builds(Peer, texts, st.sampled_from(Role), texts, st.integers(0, 2**53))
transfers = texts.map(TransferId)
epochs = st.integers(0, 1000).map(Epoch)

frames = st.one_of(
    st.builds(Hello, st.integers(0, 99), peers, texts),
    st.builds(OpenFrame, transfers, index, epochs, peers, st.binary(max_size=64), shapes, texts),
    st.builds(CloseFrame, transfers, index, st.binary(max_size=2000)),
    st.builds(CancelFrame, transfers, index),
    st.builds(AckFrame, transfers, index, index, index),
    st.builds(CloseAck, transfers, index),
    st.builds(Refuse, transfers, index, st.sampled_from(Reason).map(str), index, index),
    st.builds(Ping, index),
    st.builds(Pong, index),
)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[ChunkFrame, bytes]:
    payload = draw(st.binary(min_size=0, max_size=300))
    start, count = draw(index), draw(st.integers(1, 1000))
    frame = ChunkFrame(
        draw(transfers),
        draw(index),
        draw(epochs),
        start,
        min(start + count, 2**40),
        0,
        draw(st.integers(0, 128)),
        draw(dtypes),
        checksum(payload),
        len(payload),
    )
    return frame, payload


messages = st.one_of(frames.map(lambda frame: (frame, b"")), chunks())


def stream_of(said: list[tuple[Frame, bytes]]) -> bytes:
    return b"".join(encode(frame) + payload for frame, payload in said)


def heard(decoder: Decoder, pieces: list[bytes]) -> list[tuple[Frame, bytes]]:
    """Frames with their payloads joined."""
    found: list[tuple[Frame, bytes]] = []
    for piece in pieces:
        for item in decoder.feed(piece):
            if isinstance(item, Frame):
                found.append((item, b""))
            else:
                found[-1] = (found[-1][0], found[-1][1] + bytes(item))
    return found


@given(st.lists(messages, max_size=6))
def test_fed_whole_it_says_what_was_encoded(said: list[tuple[Frame, bytes]]) -> None:
    assert heard(Decoder(), [stream_of(said)]) == said


@given(st.lists(messages, max_size=3))
def test_fed_byte_by_byte_it_says_the_same(said: list[tuple[Frame, bytes]]) -> None:
    stream = stream_of(said)
    assert heard(Decoder(), [stream[i : i + 1] for i in range(len(stream))]) == said


@given(messages, messages, st.integers(1, 400))
def test_a_tail_waits_for_its_rest(one: tuple[Frame, bytes], other: tuple[Frame, bytes], tail: int) -> None:
    stream = stream_of([one, other])
    cut = min(len(stream_of([one])) + tail, len(stream))
    assert heard(Decoder(), [stream[:cut], stream[cut:]]) == [one, other]


@given(st.lists(messages, max_size=4))
def test_a_reader_that_takes_payloads_past_the_decoder_hears_the_same(said: list[tuple[Frame, bytes]]) -> None:
    stream, at, found, decoder = stream_of(said), 0, [], Decoder()
    while at < len(stream):
        if decoder.payload_left:
            count = decoder.payload_left
            decoder.took(count)
            found[-1] = (found[-1][0], stream[at : at + count])
        else:
            count = decoder.wanted
            found += [(frame, b"") for frame in decoder.feed(stream[at : at + count])]
        at += count
    assert found == said
    assert decoder.between_frames and decoder.wanted == HEADER_BYTES


def test_payload_pieces_are_views_of_what_was_fed() -> None:
    payload = bytes(range(100))
    stream = bytearray(stream_of([(_chunk(payload), payload)]))
    _, piece = Decoder().feed(stream)
    assert isinstance(piece, memoryview) and piece.obj is stream


@given(st.binary(max_size=200))
def test_bytes_of_a_stranger_are_refused_or_waited_for(noise: bytes) -> None:
    decoder = Decoder()
    try:
        assert decoder.feed(noise) == []
    except FrameError:
        with pytest.raises(FrameError):
            decoder.feed(b"")


@given(messages, st.data())
def test_a_flipped_bit_outside_the_payload_is_noticed(message: tuple[Frame, bytes], data: st.DataObject) -> None:
    head = encode(message[0])
    bit = data.draw(st.integers(0, len(head) * 8 - 1))
    damaged = bytearray(head)
    damaged[bit // 8] ^= 1 << bit % 8
    with contextlib.suppress(FrameError):
        assert heard(Decoder(), [bytes(damaged)]) == []  # a longer frame was announced: its check will fail


@given(st.integers(1, 19), st.binary(min_size=1, max_size=100))
def test_metadata_with_a_right_check_and_wrong_content_is_refused_or_is_that_frame(kind: int, meta: bytes) -> None:
    try:
        for item in Decoder().feed(_raw(kind, meta)):
            assert isinstance(item, Frame)
    except FrameError:
        pass


def test_deeply_nested_metadata_is_refused() -> None:
    with pytest.raises(FrameError):
        Decoder().feed(_raw(6, b"\x92\x01" + b"\x91" * 60_000 + b"\x01"))


@pytest.mark.parametrize(
    ("kind", "meta_bytes", "payload_bytes", "words"),
    [
        (3, META_MAX + 1, 10, "metadata"),
        (3, 0, 10, "metadata"),
        (3, 40, 1 << 31, "payload"),
        (4, 40, 1, "payload"),
        (99, 40, 0, "kind"),
    ],
)
def test_hostile_lengths_are_refused_at_the_header(kind: int, meta_bytes: int, payload_bytes: int, words: str) -> None:
    header = struct.pack("<4sB3xIIQ", b"PDDK", kind, meta_bytes, payload_bytes, 0)
    with pytest.raises(FrameError, match=words):
        Decoder().feed(header)


def test_a_payload_beyond_the_readers_own_limit_is_refused() -> None:
    payload = bytes(1000)
    with pytest.raises(FrameError, match="limit is 999"):
        Decoder(payload_max=999).feed(encode(_chunk(payload)))


def test_a_chunk_whose_two_payload_lengths_differ_is_refused() -> None:
    meta = msgspec.msgpack.encode(_chunk(bytes(10)))
    with pytest.raises(FrameError, match="lengths differ"):
        Decoder().feed(_raw(3, meta, payload_bytes=11))


def test_a_newer_peer_may_append_fields() -> None:
    meta = msgspec.msgpack.encode([7, "something new"])
    assert Decoder().feed(_raw(6, meta)) == [Ping(7)]


def test_a_closing_frame_that_is_too_long_is_refused_by_the_encoder() -> None:
    with pytest.raises(FrameError, match="limit"):
        encode(CloseFrame(T, 1, bytes(META_MAX)))


def test_taking_more_payload_than_there_is_is_a_mistake_of_the_reader() -> None:
    with pytest.raises(ValueError):
        Decoder().took(1)


def test_the_layout_on_the_wire_is_the_one_in_the_docstring() -> None:
    frame = Hello(PROTOCOL, PEER, "f")
    encoded = encode(frame)
    magic, kind, meta_bytes, payload_bytes, check = struct.unpack_from("<4sB3xIIQ", encoded)
    meta = encoded[HEADER_BYTES:]
    assert (magic, kind, meta_bytes, payload_bytes) == (b"PDDK", 1, len(meta), 0)
    assert check == xxhash.xxh3_64_intdigest(meta, seed=xxhash.xxh3_64_intdigest(encoded[:16]))
    assert msgspec.msgpack.decode(meta) == [1, ["b", "main_decode", "md-0", 3], "f", 0, 0, []]


def _chunk(payload: bytes) -> ChunkFrame:
    return ChunkFrame(T, 1, Epoch(1), 0, 4, 0, SHAPE.layers, SHAPE.dtype, checksum(payload), len(payload))


def _raw(kind: int, meta: bytes, payload_bytes: int = 0) -> bytes:
    lengths = struct.pack("<4sB3xII", b"PDDK", kind, len(meta), payload_bytes)
    check = xxhash.xxh3_64_intdigest(meta, seed=xxhash.xxh3_64_intdigest(lengths))
    return lengths + struct.pack("<Q", check) + meta
