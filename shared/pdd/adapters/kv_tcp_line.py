"""The way from here to one receiver over TCP: a thread that writes, and while connected one that hears the answers.

The writer exports each chunk just before it sends it. A lost connection fails the transfers that had begun on it; the next use
connects again, after a back-off. Nobody who asks for something waits for the line.
"""

import threading
from collections.abc import Callable

from ..core.effects import OpenTransfer
from ..core.errors import FrameError
from ..core.events import Event
from ..core.ids import TransferId
from ..core.outbox import ChunkDue, Outbox
from ..core.wire import Hello, Refuse
from ..ports import Clock, KvSource
from .kv_intake import wire_shape
from .kv_tcp_stream import TcpOptions, TcpStream, dial

JOIN_S = 2.0
TICK_S = 0.25  # how often a line with transfers looks at its pings and time-outs


class Line:
    """`tell` takes the events, under `lock`, so that no answer overtakes a failure. All lines of a link share the lock."""

    def __init__(
        self,
        address: str,
        congestion: str,
        hello: Hello,
        outbox: Outbox,
        source: KvSource,
        clock: Clock,
        tell: Callable[[list[Event]], None],
        lock: threading.RLock,
        options: TcpOptions,
    ) -> None:
        self.address = address
        self._congestion, self._hello, self._outbox, self._source = congestion, hello, outbox, source
        self._clock, self._tell, self._options = clock, tell, options
        self._changed = threading.Condition(lock)
        self._stream: TcpStream | None = None
        self._listener: threading.Thread | None = None
        self._backoff_s = 0.0
        self._connect_at = 0.0  # not before
        self._retired = False  # no more transfers: the thread is about to end
        self._thread = threading.Thread(target=self._run, name=f"kv-out {address}", daemon=True)
        self._thread.start()

    @property
    def retired(self) -> bool:
        return self._retired

    # -- from any thread ----------------------------------------------------------------------------------------------

    def open(self, effect: OpenTransfer, attempt: int) -> bool:
        """False when the line has retired: make another."""
        with self._changed:
            if not self._retired:
                self._outbox.open(effect, attempt)
                self._changed.notify_all()
            return not self._retired

    def offer(self, transfer: TransferId, start: int, stop: int) -> None:
        with self._changed:
            self._outbox.offer(transfer, start, stop)
            self._changed.notify_all()

    def close_transfer(self, transfer: TransferId, closing: bytes) -> None:
        with self._changed:
            self._outbox.close(transfer, closing)
            self._changed.notify_all()

    def cancel(self, transfer: TransferId) -> None:
        with self._changed:
            self._outbox.cancel(transfer)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._retired = True
            if self._stream:
                self._stream.hang_up("closed")
            self._changed.notify_all()

    def join(self) -> None:
        """A thread that is just connecting ends by itself, a little later."""
        self._thread.join(JOIN_S)

    # -- the writer ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._await_work():
                try:
                    stream = self._stream or self._connect()
                    self._step(stream)
                except (OSError, FrameError) as error:
                    self._lost(error)
        finally:
            with self._changed:
                self._retired = True
                self._tell(self._outbox.lost("closed"))
            self._disconnect()

    def _await_work(self) -> bool:
        with self._changed:
            while not self._retired and not self._outbox.active:
                if self._stream and self._stream.ended:
                    return True
                if not self._changed.wait(self._options.idle_s):
                    self._retired = True
            return not self._retired

    def _step(self, stream: TcpStream) -> None:
        with self._changed:
            if stream.ended:
                raise ConnectionResetError(stream.ended)
            due = self._outbox.next(self._clock.now())
            if due is None:
                self._tell([])
                self._changed.wait(TICK_S)
                return
        if isinstance(due, ChunkDue):
            self._send_chunk(stream, due)
        else:
            stream.send(due)

    def _send_chunk(self, stream: TcpStream, due: ChunkDue) -> None:
        try:
            chunk = self._source.export_kv(due.key, due.start, due.stop)
        except KeyError:
            with self._changed:
                self._tell(self._outbox.fail(due.transfer, due.attempt, "sequence_closed"))
            return
        payload = chunk.data.cast("B")
        stream.send(due.frame(wire_shape(chunk.shape), payload), payload)

    # -- the connection -----------------------------------------------------------------------------------------------

    def _connect(self) -> TcpStream:
        with self._changed:
            if self._changed.wait_for(lambda: self._retired, max(0.0, self._connect_at - self._clock.now())):
                raise ConnectionAbortedError("closed")
            self._backoff_s = min(max(2 * self._backoff_s, self._options.backoff_s), self._options.backoff_max_s)
            self._connect_at = self._clock.now() + self._backoff_s
        stream = dial(self.address, self._options.silence_s, self._options.connect_s, self._congestion)
        try:
            round_trip_s = self._greet(stream)
        except BaseException:
            stream.close()
            raise
        with self._changed:
            self._stream, self._backoff_s, self._connect_at = stream, 0.0, 0.0
            self._outbox.connected(self._clock.now(), round_trip_s)
            if self._retired:
                stream.hang_up("closed")
        self._listener = threading.Thread(target=self._listen, args=(stream,), name=f"kv-answers {self.address}")
        self._listener.daemon = True
        self._listener.start()
        return stream

    def _greet(self, stream: TcpStream) -> float:
        stream.receive_timeout(self._options.connect_s)
        began = self._clock.now()
        stream.send(self._hello)
        answer = stream.read_frame()
        if answer is None:
            raise TimeoutError("no greeting came")
        if isinstance(answer, Refuse):
            raise LineRefused(answer.reason)
        if not isinstance(answer, Hello):
            raise FrameError(f"a connection begins with Hello, not {type(answer).__name__}")
        stream.receive_timeout(TICK_S)
        return self._clock.now() - began

    def _lost(self, error: Exception) -> None:
        """A connection that was lost before anything was sent on it is made anew without a word."""
        connected = self._stream is not None
        self._disconnect()
        with self._changed:
            if connected and self._outbox.untouched:
                self._outbox.disconnected()
            else:
                self._tell(self._outbox.lost(reason_of(error, connected)))

    def _disconnect(self) -> None:
        if self._stream is None:
            return
        self._stream.hang_up("lost")
        if self._listener:
            self._listener.join()
        self._stream.close()
        with self._changed:
            self._stream = self._listener = None

    def _listen(self, stream: TcpStream) -> None:
        """Hear the answers until the stream ends; a silent line ends it."""
        why = "lost"
        try:
            while not stream.ended:
                frame = stream.read_frame()
                with self._changed:
                    if frame is not None:
                        self._tell(self._outbox.receive(frame, self._clock.now()))
                    elif self._outbox.overdue(self._clock.now()):
                        why = "silent"
                        return
                    self._changed.notify_all()
        except (OSError, FrameError):
            pass
        finally:
            with self._changed:
                stream.hang_up(why)
                self._changed.notify_all()


class LineRefused(ConnectionError):
    """The receiver's reason for refusing the whole connection."""


def reason_of(error: Exception, connected: bool) -> str:
    """One word: it becomes a metric's label."""
    match error:
        case LineRefused():
            return str(error)
        case FrameError():
            return "bad_frame"
        case TimeoutError():
            return "silent" if connected else "unreachable"
    return "lost" if connected else "unreachable"
