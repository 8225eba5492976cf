"""Messages to bytes and back: what was encoded decodes to an equal value, anything else raises FrameError alone."""

from typing import cast

import msgspec

from .errors import FrameError
from .ids import Peer
from .messages import AnyMessage, Envelope, Message, Written

_encoder = msgspec.msgpack.Encoder()
_envelopes = msgspec.msgpack.Decoder(Envelope)
_written = msgspec.msgpack.Decoder(Written)


def encode(envelope: Envelope) -> bytes:
    return _encoder.encode(envelope)


def encode_message(sender: Peer, to: Peer | None, message: Message) -> bytes:
    return encode(Envelope(sender, to, cast(AnyMessage, message)))


def decode(frame: bytes | memoryview) -> Envelope:
    """Raises FrameError on anything that is no envelope of a known message."""
    try:
        return _envelopes.decode(frame)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"{len(frame)} bytes are no envelope: {error}") from error


def encode_written(written: Written) -> bytes:
    """What a transfer's closing frame carries."""
    return _encoder.encode(written)


def decode_written(frame: bytes | memoryview) -> Written:
    """Raises FrameError."""
    try:
        return _written.decode(frame)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FrameError(f"{len(frame)} bytes are no written outputs: {error}") from error
