"""What goes over the wire comes back equal, and nothing that comes in can do more than raise FrameError."""

import enum
import types
from contextlib import suppress
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core import codec, subjects
from pdd.core.errors import FrameError
from pdd.core.ids import Peer, Role
from pdd.core.messages import AnyMessage, Beat, BlocksChanged, Envelope, Release, Tokens, Written

PEER = Peer("a", Role.PREFILL, "p-1", 2**60)
WHOLE = Envelope(PEER, None, Release("r", 1))
MESSAGES = get_args(AnyMessage)
SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),  # what msgpack holds
    float: st.floats(allow_nan=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=40),
    bool: st.booleans(),
    type(None): st.none(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Every value that the wire can carry for this annotation."""
    kind = getattr(kind, "__supertype__", kind)
    if kind in SCALARS:
        return SCALARS[kind]
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return st.one_of([values(arg) for arg in args])
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if origin is dict:
        return st.dictionaries(*map(values, args), max_size=3)
    if issubclass(kind, enum.Enum):
        return st.sampled_from(kind)
    assert issubclass(kind, msgspec.Struct)
    return st.builds(kind, **{name: values(hint) for name, hint in get_type_hints(kind).items()})


envelopes = values(Envelope)


@given(envelopes)
def test_every_message_comes_back_equal(envelope: Envelope) -> None:
    assert codec.decode(codec.encode(envelope)) == envelope


@given(values(Written))
def test_a_closing_frame_comes_back_equal(written: Written) -> None:
    assert codec.decode_written(codec.encode_written(written)) == written


@given(st.binary(max_size=200))
def test_noise_raises_frame_error_alone(noise: bytes) -> None:
    for decode in (codec.decode, codec.decode_written):
        with suppress(FrameError):
            decode(noise)


@given(envelopes, st.data())
def test_a_flipped_or_cut_frame_raises_nothing_but_frame_error(envelope: Envelope, data: st.DataObject) -> None:
    frame = codec.encode(envelope)
    at = data.draw(st.integers(0, len(frame) - 1))
    flipped = frame[:at] + bytes([frame[at] ^ data.draw(st.integers(1, 255))]) + frame[at + 1 :]
    with suppress(FrameError):
        assert isinstance(codec.decode(flipped), Envelope)
    with pytest.raises(FrameError):
        codec.decode(frame[:at])


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xc1", b"\xdd\xff\xff\xff\xff", b"\x93", b"\x94" + codec.encode(WHOLE)[1:] + b"\x91" * 100_000],
    ids=["nothing", "reserved opcode", "four billion announced", "header alone", "deep nesting in newer fields"],
)
def test_hostile_frames_raise_frame_error(frame: bytes) -> None:
    with pytest.raises(FrameError):
        codec.decode(frame)


@given(st.tuples(*map(values, MESSAGES)))
def test_no_two_kinds_of_message_share_a_verb(messages: tuple[Any, ...]) -> None:
    verbs = {subjects.to_peer(PEER, message) for message in messages}
    assert len(verbs) == len(MESSAGES)


def test_a_subject_names_version_site_role_worker_and_verb_but_no_incarnation() -> None:
    later = Peer(PEER.site, PEER.role, PEER.name, PEER.incarnation + 1)
    for life in (PEER, later):
        assert subjects.to_peer(life, Release("r", 1)) == "pdd.v1.a.prefill.p-1.release"
    assert subjects.inbox(PEER) == "pdd.v1.a.prefill.p-1.*"


def test_a_broadcast_is_heard_where_its_verb_is_listened_to() -> None:
    assert subjects.to_all(PEER, BlocksChanged(1, b"", b"")) == "pdd.v1.a.prefill.p-1.blocks"
    assert subjects.from_all(BlocksChanged) == "pdd.v1.*.*.*.blocks"
    assert subjects.from_all(Beat) == "pdd.v1.*.*.*.beat"
    with pytest.raises(ValueError, match="Tokens is no broadcast"):
        subjects.to_all(PEER, Tokens(()))


@pytest.mark.parametrize("name", ["", "a.b", "*", ">", "a b", "a\r\nPUB x 0", "é", "x" * 65, "a\n"])
def test_a_name_that_would_change_a_subject_is_refused(name: str) -> None:
    for peer in (Peer(name, Role.MAIN, "m", 1), Peer("b", Role.MAIN, name, 1)):
        with pytest.raises(ValueError, match="is no name"):
            subjects.inbox(peer)
