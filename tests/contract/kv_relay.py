"""A TCP relay that understands KV frames: what a bad line does to them is what a `Fault` says. For tests alone."""

import contextlib
import socket
import threading

from pdd.adapters.kv_memory_lines import Fault, Parcel, no_fault
from pdd.core.wire import ChunkFrame, Decoder, Frame, encode

PIECE = 64 << 10


class Relay:
    """Listens on a port of its own and connects on to `target`. Sender to receiver frame by frame, back byte by byte."""

    def __init__(self, target: str, fault: Fault = no_fault) -> None:
        self.fault = fault
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._open = threading.Event()
        self._open.set()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._port = 0
        self.restore()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def restore(self) -> None:
        """Listen again, on the same port; let flow what was held."""
        self._open.set()
        if self._sockets:
            return
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._sockets.append(listener)
        self._start(self._accept, listener)

    def stall(self) -> None:
        self._open.clear()

    def cut(self) -> None:
        """Reset what is open, refuse what comes."""
        with self._lock:
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._open.set()
        for thread in self._threads:
            thread.join(5)
        for one in sockets:
            one.close()

    def close(self) -> None:
        self.cut()

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True, name="relay")  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self._target, timeout=5)
                far.settimeout(None)
                with self._lock:
                    self._sockets += [near, far]
                self._start(self._forward, near, far)
                self._start(self._back, far, near)

    def _forward(self, near: socket.socket, far: socket.socket) -> None:
        decoder, head, payload = Decoder(), None, bytearray()
        with contextlib.suppress(OSError):
            while data := near.recv(PIECE):
                for item in decoder.feed(data):
                    if isinstance(item, Frame):
                        head = item
                    else:
                        payload += item
                    wanted = head.payload_bytes if isinstance(head, ChunkFrame) else 0
                    if head is not None and len(payload) == wanted:
                        self._pass(far, Parcel(head, memoryview(bytes(payload)) if payload else None))
                        head, payload = None, bytearray()
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_WR)  # what was sent before still arrives

    def _pass(self, far: socket.socket, parcel: Parcel) -> None:
        self._open.wait(60)
        for frame, payload, _ in self.fault(parcel):
            whole = payload is None or payload.nbytes == parcel.payload.nbytes if parcel.payload else True
            far.sendall(encode(frame) + (payload or b""))
            if not whole:
                raise ConnectionError("cut inside the payload")

    def _back(self, far: socket.socket, near: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := far.recv(PIECE):
                self._open.wait(60)
                near.sendall(data)
        for one in (near, far):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
