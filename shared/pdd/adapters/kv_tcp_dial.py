"""Connecting to a receiver: plain TCP to `host:port`, TLS to `tls://host:port`, and nothing plain to another site where we have TLS."""

import ssl

from ..core.errors import FrameError
from .kv_tcp_socket import Channel, SocketChannel, TcpOptions, connect
from .kv_tcp_tls import SCHEME, TlsChannel, TlsContexts


class NoTls(ConnectionError):
    """One side speaks TLS and the other does not."""


def dial(address: str, near: bool, options: TcpOptions, contexts: TlsContexts | None) -> tuple[SocketChannel, Channel]:
    """The connection, and what to speak over. Raises OSError."""
    secret = address.startswith(SCHEME)
    if secret != (contexts is not None) and (secret or not near):
        raise NoTls(f"{address} and our own configuration differ on TLS")
    congestion = options.congestion_near if near else options.congestion_far
    below = SocketChannel(connect(address.removeprefix(SCHEME), options, congestion), options.silence_s)
    if contexts is None or not secret:
        return below, below
    channel = TlsChannel(below, contexts, server=False)
    try:
        below.receive_timeout(options.connect_s)
        channel.shake_hands()
    except BaseException:
        below.close()
        raise
    return below, channel


class LineRefused(ConnectionError):
    """The receiver's reason for refusing the whole connection."""


def reason_of(error: Exception, connected: bool) -> str:
    """One word for what ended a connection, or kept it from being made: it becomes a metric's label."""
    match error:
        case LineRefused():
            return str(error)
        case NoTls() | ssl.SSLError() if not connected:
            return "tls"
        case FrameError():
            return "bad_frame"
        case TimeoutError():
            return "silent" if connected else "unreachable"
    return "lost" if connected else "unreachable"
