"""KV frames over one blocking TCP socket. Payloads go out of, and come into, the memory they are given; every wait is bounded.

Time-outs are the kernel's own (SO_RCVTIMEO, SO_SNDTIMEO), so that one call fills a whole payload. Errors are OSError and FrameError.
"""

import contextlib
import socket
import struct
from dataclasses import dataclass

from ..core.wire import PAYLOAD_MAX, Decoder, Frame, encode

NOT_SENT_BYTES = 128 << 10  # what may wait in the kernel: little, so that a small transfer's chunk comes soon
SCRATCH_BYTES = 1 << 20
KEEPALIVE_PROBES = 3


@dataclass(frozen=True, slots=True)
class TcpOptions:
    """Seconds, and names of the kernel's congestion controls ("" or an unsupported one: the kernel's choice)."""

    connect_s: float = 5.0  # for TCP and the greeting
    silence_s: float = 8.0  # an unanswered line is dead after so long
    idle_s: float = 120.0  # a connection without transfers is closed after so long
    backoff_s: float = 0.1  # first wait after a failed connect; it doubles
    backoff_max_s: float = 2.0
    congestion_near: str = "cubic"  # on a short way it needs less of the processor than bbr
    congestion_far: str = ""
    connections_max: int = 256
    half_open_max: int = 32
    payload_max: int = PAYLOAD_MAX


class TcpStream:
    """One connection. Reading and writing may be done by two threads; `hang_up` by any; `close` only when both have left."""

    def __init__(self, connection: socket.socket, silence_s: float, payload_max: int = PAYLOAD_MAX) -> None:
        self._socket = connection
        self._decoder = Decoder(payload_max)
        self._head = memoryview(bytearray(64 << 10))
        self.ended = ""  # why, once it has
        connection.settimeout(None)
        _tune(connection, silence_s)
        self.send_timeout(silence_s)
        self.receive_timeout(silence_s)

    def send_timeout(self, seconds: float) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(seconds))

    def receive_timeout(self, seconds: float) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))

    # -- out ----------------------------------------------------------------------------------------------------------

    def send(self, frame: Frame, payload: memoryview | None = None) -> None:
        """Raises TimeoutError when nothing left for a whole silence."""
        buffers = [memoryview(encode(frame))]
        if payload is not None:
            buffers.append(payload)
        while buffers:
            try:
                sent = self._socket.sendmsg(buffers)
            except BlockingIOError:
                raise TimeoutError("the line takes nothing") from None
            while buffers and sent >= buffers[0].nbytes:
                sent -= buffers.pop(0).nbytes
            if sent:
                buffers[0] = buffers[0][sent:]

    # -- in -----------------------------------------------------------------------------------------------------------

    @property
    def between_frames(self) -> bool:
        return self._decoder.between_frames

    def read_frame(self) -> Frame | None:
        """The next frame; None when nothing came for the receive time-out. Raises ConnectionResetError at the end."""
        while True:
            try:
                count = self._socket.recv_into(self._head[: min(self._decoder.wanted, len(self._head))])
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
                count = self._socket.recv_into(target, target.nbytes, socket.MSG_WAITALL)
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
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()


def dial(address: str, silence_s: float, connect_s: float, congestion: str) -> TcpStream:
    """Connect to `host:port`. Raises OSError."""
    host, port = host_and_port(address)
    failure: OSError = ConnectionError(f"{address} has no address")
    for family, kind, protocol, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            _choose_congestion(connection, congestion)
            connection.settimeout(connect_s)
            connection.connect(target)
            return TcpStream(connection, silence_s)
        except OSError as error:
            connection.close()
            failure = error
    raise failure


def listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=128)


def host_and_port(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port`. Raises OSError, as any address that cannot be reached."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConnectionError(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


def _tune(connection: socket.socket, silence_s: float) -> None:
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(tcp, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    between_s = max(1, int(silence_s / KEEPALIVE_PROBES))
    for name, value in (  # Linux has them all; elsewhere the kernel's own hold
        ("TCP_KEEPIDLE", between_s),
        ("TCP_KEEPINTVL", between_s),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", int(silence_s * 1000)),
        ("TCP_NOTSENT_LOWAT", NOT_SENT_BYTES),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(tcp, option, value)


def _choose_congestion(connection: socket.socket, name: str) -> None:
    option = getattr(socket, "TCP_CONGESTION", None)
    if name and option is not None:
        with contextlib.suppress(OSError):  # not built into this kernel
            connection.setsockopt(socket.IPPROTO_TCP, option, name.encode())


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, int((seconds - whole) * 1_000_000))
