"""A TCP relay that changes one byte on its way to the target, once. For tests alone."""

import contextlib
import socket
import threading

PIECE = 64 << 10


class Flipper:
    """`at`: which byte of all that goes to the target, over every connection."""

    def __init__(self, target: tuple[str, int], at: int) -> None:
        self.flipped = False
        self._target, self._left = target, at
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for one in self._sockets:
            one.close()

    def _start(self, work: object, *args: object) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target, timeout=5)
                far.settimeout(None)
                self._sockets += [near, far]
                self._start(self._carry, near, far, True)
                self._start(self._carry, far, near, False)

    def _carry(self, source: socket.socket, target: socket.socket, forth: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                target.sendall(self._changed(data) if forth else data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _changed(self, data: bytes) -> bytes:
        with self._lock:
            at, self._left = self._left, self._left - len(data)
            if self.flipped or not 0 <= at < len(data):
                return data
            self.flipped = True
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
