"""TLS 1.3 with certificates on both sides, over one TCP connection. Whoever has none of our authority's gets nothing.

The library works on memory alone, under a lock, and sockets are used outside of it: one thread may write while another reads.
"""

import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

from .kv_tcp_socket import SocketChannel

CIPHER_BYTES = 256 << 10
PLAIN_BYTES = 128 << 10  # encrypted at once, between two sends
SCHEME = "tls://"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `authority` signs both sides' certificates; `peer_name`: the name a receiver's must have ("": any)."""

    certificate: Path
    key: Path
    authority: Path
    peer_name: str = ""


@dataclass(frozen=True, slots=True)
class TlsContexts:
    client: ssl.SSLContext
    server: ssl.SSLContext
    peer_name: str

    @classmethod
    def of(cls, files: TlsFiles) -> "TlsContexts":
        """Raises OSError (ssl.SSLError among them) where the files are not what they should be."""
        client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client.check_hostname = bool(files.peer_name)
        for context in (client, server):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(files.authority)
            context.load_cert_chain(files.certificate, files.key)
        server.num_tickets = 0  # connections live long; nothing is resumed
        return cls(client, server, files.peer_name)


class TlsChannel:
    """Satisfies kv_tcp_socket.Channel. `shake_hands` first."""

    def __init__(self, below: SocketChannel, contexts: TlsContexts, *, server: bool) -> None:
        self._below = below
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context, name = (contexts.server, None) if server else (contexts.client, contexts.peer_name or None)
        self._tls = context.wrap_bio(self._in, self._out, server_side=server, server_hostname=name)
        self._lock = threading.Lock()
        self._cipher = memoryview(bytearray(CIPHER_BYTES))

    def shake_hands(self) -> None:
        """Raises OSError; TimeoutError when the peer says nothing for a receive time-out."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                try:
                    count = self._take_in()
                except BlockingIOError:
                    raise TimeoutError("no handshake came") from None
                if not count:
                    raise ConnectionResetError("the peer has ended the handshake") from None
            except ssl.SSLError:
                self._flush()  # the alert tells the peer why
                raise
            else:
                return self._flush()

    def receive_timeout(self, seconds: float) -> None:
        self._below.receive_timeout(seconds)

    def send(self, buffers: list[memoryview]) -> None:
        """Only one thread at a time: records leave in the order in which they were made."""
        for buffer in buffers:
            for at in range(0, buffer.nbytes, PLAIN_BYTES):
                with self._lock:
                    self._tls.write(buffer[at : at + PLAIN_BYTES])
                if self._out.pending >= PLAIN_BYTES:
                    self._flush()
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            data = self._out.read()
        if data:
            self._below.send([memoryview(data)])

    def receive(self, target: memoryview) -> int:
        while True:
            if count := self._decrypt(target):
                return count
            if not self._take_in():
                return 0

    def fill(self, target: memoryview) -> int:
        return self.receive(target)

    def _decrypt(self, target: memoryview) -> int:
        """As much of what has come in as fits; a record at a time."""
        count = 0
        with self._lock:
            try:
                while count < target.nbytes and (got := self._read(target[count:])):
                    count += got
            except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
                pass
        return count

    def _read(self, target: memoryview) -> int:
        return self._tls.read(target.nbytes, target)  # type: ignore[return-value]  # a count, with a buffer

    def _take_in(self) -> int:
        count = self._below.receive(self._cipher)
        with self._lock:
            self._in.write(self._cipher[:count])
        return count

    def hang_up(self) -> None:
        self._below.hang_up()

    def close(self) -> None:
        self._below.close()
