"""Connecting to a receiver: plain TCP to `host:port`, TLS to `tls://host:port`, and nothing plain to another site where we have TLS."""

import ssl

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


def why_not(error: OSError) -> str | None:
    """One word, where TLS is the reason."""
    return "tls" if isinstance(error, NoTls | ssl.SSLError) else None
