"""KV frames over one channel. Payloads go out of, and come into, the memory they are given; every wait is bounded.

Reading and writing may be done by two threads; `hang_up` by any; `close` only when both have left. Errors are OSError and
FrameError.
"""

from collections.abc import Sequence

from ..core.wire import PAYLOAD_MAX, Decoder, Frame, encode
from .kv_tcp_socket import Channel

SCRATCH_BYTES = 1 << 20
HEAD_BYTES = 64 << 10


class TcpStream:
    def __init__(self, channel: Channel, payload_max: int = PAYLOAD_MAX) -> None:
        self._channel = channel
        self._decoder = Decoder(payload_max)
        self._head = memoryview(bytearray(HEAD_BYTES))
        self.ended = ""  # why, once it has

    def receive_timeout(self, seconds: float) -> None:
        self._channel.receive_timeout(seconds)

    # -- out ----------------------------------------------------------------------------------------------------------

    def send(self, frame: Frame, parts: Sequence[memoryview] = ()) -> None:
        """The frame and its payload's parts. Raises TimeoutError when nothing left for a whole silence."""
        self._channel.send([memoryview(encode(frame)), *parts])

    # -- in -----------------------------------------------------------------------------------------------------------

    @property
    def between_frames(self) -> bool:
        return self._decoder.between_frames

    def read_frame(self) -> Frame | None:
        """The next frame; None when nothing came for the receive time-out. Raises ConnectionResetError at the end."""
        while True:
            try:
                count = self._channel.receive(self._head[: min(self._decoder.wanted, HEAD_BYTES)])
            except BlockingIOError:
                return None
            if not count:
                raise ConnectionResetError("the peer has ended the connection")
            for frame in self._decoder.feed(self._head[:count]):
                assert isinstance(frame, Frame)  # no more than `wanted` was fed
                return frame

    def read_payload(self, target: memoryview) -> None:
        """Fill `target` with the payload that is next."""
        while target:
            try:
                count = self._channel.fill(target)
            except BlockingIOError:
                raise TimeoutError("the payload stopped coming") from None
            if not count:
                raise ConnectionResetError("the connection ended inside a payload")
            self._decoder.took(count)
            target = target[count:]

    def skip_payload(self) -> None:
        """Discard the payload that is next."""
        scratch = memoryview(bytearray(min(SCRATCH_BYTES, self._decoder.payload_left)))
        while left := self._decoder.payload_left:
            self.read_payload(scratch[: min(left, len(scratch))])

    # -- the end ------------------------------------------------------------------------------------------------------

    def hang_up(self, why: str) -> None:
        """Both ends notice, and no call blocks any more."""
        self.ended = self.ended or why
        self._channel.hang_up()

    def close(self) -> None:
        self._channel.close()
