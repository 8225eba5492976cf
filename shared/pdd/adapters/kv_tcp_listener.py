"""Where KV arrives over TCP: one thread accepts, one thread serves each connection, and payloads go straight into staging.

A stranger gets no memory and no answer, and costs a thread for a few seconds; where there are too many of them, the one that has
taken longest is left, so that no crowd of them keeps one of ours out.
"""

import contextlib
import socket
import threading

from ..core.errors import FrameError
from ..core.wire import ChunkFrame, Reason, Refuse
from .kv_intake import Intake
from .kv_session import Session
from .kv_tcp_socket import SocketChannel, TcpOptions, listen, tune
from .kv_tcp_stream import TcpStream
from .kv_tcp_tls import TlsChannel, TlsContexts


class KvListener:
    def __init__(
        self, at: tuple[str, int], intake: Intake, options: TcpOptions, tls: TlsContexts | None = None
    ) -> None:
        self._at, self._intake, self._options, self._tls = at, intake, options, tls
        self._socket: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._served: dict[TcpStream, threading.Thread] = {}
        self._half_open: dict[TcpStream, None] = {}  # in order of coming
        self._closing = False
        self._lock = threading.Lock()

    def start(self) -> str:
        """Bind and accept. Returns the bound `host:port`."""
        self._socket = listen(*self._at)
        host, port = self._socket.getsockname()[:2]
        self._acceptor = threading.Thread(target=self._accept, name="kv-accept", daemon=True)
        self._acceptor.start()
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def close(self) -> None:
        if self._socket is None or self._acceptor is None:
            return
        with self._lock:
            self._closing = True
            served = dict(self._served)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        for stream in served:
            stream.hang_up("closed")
        for thread in (self._acceptor, *served.values()):
            thread.join(self._options.connect_s)
        self._socket.close()

    def _accept(self) -> None:
        assert self._socket is not None
        while not self._closing:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closing:
                    return
                continue  # the peer left before it was taken
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        try:
            tune(connection, self._options)
            below = SocketChannel(connection, self._options.silence_s)
        except OSError:
            return connection.close()
        secret = TlsChannel(below, self._tls, server=True) if self._tls else None
        stream = TcpStream(secret or below, self._options.payload_max)
        thread = threading.Thread(target=self._serve, args=(stream, secret), name="kv-in", daemon=True)
        with self._lock:
            if self._closing or len(self._served) >= self._options.connections_max:
                self._intake.count(Reason.LIMIT)
                return stream.close()
            if len(self._half_open) >= self._options.half_open_max:
                self._intake.count(Reason.LIMIT)
                next(iter(self._half_open)).hang_up("others wait")
            self._half_open[stream] = None
            self._served[stream] = thread
            thread.start()
            self._intake.connections(len(self._served))

    def _serve(self, stream: TcpStream, secret: TlsChannel | None) -> None:
        session = Session(self._intake, lambda: stream.hang_up("the sender has come anew"))
        try:
            if self._greet(stream, session, secret):
                while self._serve_frame(stream, session):
                    pass
        except FrameError:
            session.broken()
        except OSError:
            pass  # its transfers' tickets are repeated until they are whole
        finally:
            session.ended()
            with self._lock:
                self._served.pop(stream, None)
                self._intake.connections(len(self._served))
            stream.hang_up("ended")
            stream.close()

    def _greet(self, stream: TcpStream, session: Session, secret: TlsChannel | None) -> bool:
        try:
            stream.receive_timeout(self._options.connect_s)
            if secret:
                self._shake_hands(secret)
            frame = stream.read_frame()
            if frame is None:
                return False
            answer = session.greet(frame)
            stream.send(answer)
            stream.receive_timeout(self._options.silence_s)
            return not isinstance(answer, Refuse)
        finally:
            with self._lock:
                self._half_open.pop(stream, None)

    def _shake_hands(self, secret: TlsChannel) -> None:
        try:
            secret.shake_hands()
        except OSError:
            self._intake.count(Reason.TLS)
            raise

    def _serve_frame(self, stream: TcpStream, session: Session) -> bool:
        frame = stream.read_frame()
        if frame is None:
            return stream.between_frames  # idle is fine; a frame that stopped coming is not
        if isinstance(frame, ChunkFrame):
            self._serve_chunk(stream, session, frame)
        elif answer := session.receive(frame):
            stream.send(answer)
        return True

    def _serve_chunk(self, stream: TcpStream, session: Session, frame: ChunkFrame) -> None:
        place = session.place(frame)
        try:
            if isinstance(place, Reason):
                stream.skip_payload()
            else:
                stream.read_payload(session.target(frame, place))
        except OSError:
            session.cut_short(frame, place)
            raise
        stream.send(session.finish(frame, place))
