"""Sockets as a KV link wants them: dialed, listened on, tuned, paced, asked how they fare.

Time-outs are the kernel's own (SO_RCVTIMEO, SO_SNDTIMEO), so that one call fills a whole payload. What a system does not have, it
does without. Errors are OSError.
"""

import contextlib
import math
import socket
import struct
from dataclasses import asdict, dataclass
from typing import NamedTuple, Protocol

from ..core.line_settings import LineSettings
from ..core.wire import PAYLOAD_MAX

NOT_SENT_BYTES = 128 << 10  # what may wait in the kernel: little, so that a small transfer's chunk comes soon
KEEPALIVE_PROBES = 3
UNPACED = (1 << 64) - 1
SO_MAX_PACING_RATE = 47  # Linux; Python has no name for it
SEGMENTS, STEP_S = 2, 0.05  # the kernel sends so many at once and then waits, whatever pace it is told meanwhile
TCP_INFO_BYTES = 160  # up to tcpi_data_segs_out


@dataclass(frozen=True, slots=True)
class TcpOptions(LineSettings):
    """What a line's settings leave to the adapter. Seconds."""

    connect_s: float = 5.0  # for TCP and the greeting
    silence_s: float = 8.0  # an unanswered line is dead after so long
    backoff_s: float = 0.1  # first wait after a failed connect; it doubles
    backoff_max_s: float = 2.0
    payload_max: int = PAYLOAD_MAX

    @classmethod
    def of(cls, settings: LineSettings) -> "TcpOptions":
        return cls(**asdict(settings))


class Fare(NamedTuple):
    """How a connection fares, as the kernel says: smoothed round trip; since it began, segments sent, and sent again."""

    rtt_s: float
    segments: int
    again: int


class Channel(Protocol):
    """Bytes both ways, in order. One thread may write while another reads."""

    def send(self, buffers: list[memoryview]) -> None:
        """All of them. Raises TimeoutError when nothing left for a whole silence."""

    def receive(self, target: memoryview) -> int:
        """Some bytes; 0 at the end. Raises BlockingIOError when nothing came for the receive time-out."""

    def fill(self, target: memoryview) -> int:
        """As `receive`, and as many at once as can be had."""

    def receive_timeout(self, seconds: float) -> None: ...

    def hang_up(self) -> None: ...

    def close(self) -> None: ...


class SocketChannel:
    """Plain TCP: payloads go out of, and come into, the memory they are given."""

    def __init__(self, connection: socket.socket, silence_s: float) -> None:
        self.socket = connection
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(silence_s))
        self.receive_timeout(silence_s)

    def receive_timeout(self, seconds: float) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(seconds))

    def send(self, buffers: list[memoryview]) -> None:
        while buffers:
            try:
                sent = self.socket.sendmsg(buffers)
            except BlockingIOError:
                raise TimeoutError("the line takes nothing") from None
            while buffers and sent >= buffers[0].nbytes:
                sent -= buffers.pop(0).nbytes
            if sent:
                buffers[0] = buffers[0][sent:]

    def receive(self, target: memoryview) -> int:
        return self.socket.recv_into(target)

    def fill(self, target: memoryview) -> int:
        return self.socket.recv_into(target, target.nbytes, socket.MSG_WAITALL)

    def hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()


def connect(address: str, options: TcpOptions, congestion: str) -> socket.socket:
    """To `host:port`. Raises OSError."""
    host, port = host_and_port(address)
    failure: OSError = ConnectionError(f"{address} has no address")
    for family, kind, protocol, _, target in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            _choose_congestion(connection, congestion)
            tune(connection, options)
            connection.settimeout(options.connect_s)
            connection.connect(target)
            return connection
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


def tune(connection: socket.socket, options: TcpOptions) -> None:
    tcp = socket.IPPROTO_TCP
    connection.setsockopt(tcp, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if options.buffer_bytes:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, options.buffer_bytes)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, options.buffer_bytes)
    between_s = max(1, int(options.silence_s / KEEPALIVE_PROBES))
    for name, value in (  # Linux has them all; elsewhere the kernel's own hold
        ("TCP_KEEPIDLE", between_s),
        ("TCP_KEEPINTVL", between_s),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", int(options.silence_s * 1000)),
        ("TCP_NOTSENT_LOWAT", NOT_SENT_BYTES),
    ):
        option = getattr(socket, name, None)
        if option is not None:
            connection.setsockopt(tcp, option, value)


def pace(connection: socket.socket, bytes_per_s: float) -> None:
    """No faster than this; infinite, or finer than the kernel can: as TCP likes. The outbox's own pace holds anyway."""
    with contextlib.suppress(OSError):
        step = SEGMENTS * connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        rate = UNPACED if math.isinf(bytes_per_s) or bytes_per_s * STEP_S < step else int(bytes_per_s)
        connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("@Q", rate))


def fare(connection: socket.socket) -> Fare | None:
    """None where the kernel does not tell."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return None
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, option, TCP_INFO_BYTES)
    except OSError:
        return None
    if len(info) < TCP_INFO_BYTES:
        return None
    rtt_us, again, segments = (struct.unpack_from("@I", info, at)[0] for at in (68, 100, 156))
    return Fare(rtt_us / 1e6, segments, again)


def _choose_congestion(connection: socket.socket, name: str) -> None:
    option = getattr(socket, "TCP_CONGESTION", None)
    if name and option is not None:
        with contextlib.suppress(OSError):  # not built into this kernel, or not allowed to us
            connection.setsockopt(socket.IPPROTO_TCP, option, name.encode())


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, int((seconds - whole) * 1_000_000))
