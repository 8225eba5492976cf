"""One connection to a receiver over TCP: a thread that writes, and while connected one that hears the answers.

The writer exports each chunk just before it sends it. A connection that broke is made again, after a back-off where none could be
made or none got on. The threads end when the lane has been idle for long, and are started again when it is wanted.
"""

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import msgspec

from ..core.effects import Count
from ..core.errors import FrameError
from ..core.events import Event
from ..core.ids import TransferId
from ..core.lane import Lane
from ..core.leaving import ChunkDue
from ..core.outbox import Outbox
from ..core.wire import AckFrame, Frame, Hello, Refuse
from ..ports import Clock, KvChunk, KvSource, Notes
from .kv_codecs import Codec
from .kv_intake import wire_shape
from .kv_tcp_dial import LineRefused, dial, reason_of
from .kv_tcp_socket import Fare, SocketChannel, TcpOptions, fare, pace
from .kv_tcp_stream import TcpStream
from .kv_tcp_tls import TlsContexts

PACE_STEP = 0.03  # a smaller change of pace is none
TICK_S = 0.25  # how often a lane with transfers looks at its pings and time-outs


@dataclass(frozen=True)
class Means:
    """What all lanes of one link work with."""

    hello: Hello
    source: KvSource
    notes: Notes
    clock: Clock
    options: TcpOptions
    tls: TlsContexts | None
    codecs: Mapping[str, Codec]


class Way(Protocol):
    """The line that a lane belongs to. `changed` is the lock of all that is shared; `tell` wants it held."""

    address: str
    site: str
    near: bool
    outbox: Outbox
    changed: threading.Condition
    tell: Callable[[list[Event]], None]
    closed: bool


class LaneWorker:
    def __init__(self, way: Way, lane: Lane, means: Means) -> None:
        self._way, self._lane, self._means = way, lane, means
        self._outbox, self._changed = way.outbox, way.changed
        self._thread: threading.Thread | None = None
        self._stream: TcpStream | None = None
        self._socket: SocketChannel | None = None
        self._listener: threading.Thread | None = None
        self._backoff_s = 0.0
        self._connect_at = 0.0  # not before
        self._paced_at = math.inf
        self._fare: Fare | None = None
        self._lent: dict[tuple[TransferId, int, int, int], Callable[[], None]] = {}  # until it is answered

    # -- from any thread, under the line's lock -----------------------------------------------------------------------

    @property
    def running(self) -> bool:
        return self._thread is not None

    def start_if_wanted(self) -> None:
        if self._thread is None and not self._way.closed and self._outbox.wanted(self._lane):
            name = f"kv-out {self._way.address} {self._lane.number}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def keep_pace(self, bytes_per_s: float) -> None:
        """At once, in the kernel: what is being sent slows down too."""
        if self._lane.small or self._socket is None or math.isclose(bytes_per_s, self._paced_at, rel_tol=PACE_STEP):
            return
        pace(self._socket.socket, bytes_per_s)
        self._paced_at = bytes_per_s

    def hang_up(self, why: str) -> None:
        if self._stream:
            self._stream.hang_up(why)

    def join(self, seconds: float) -> None:
        """A thread that is just connecting ends by itself, a little later."""
        if thread := self._thread:
            thread.join(seconds)

    # -- the writer ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._await_work():
            try:
                self._step(self._stream or self._connect())
            except (OSError, FrameError) as error:
                self._lost(error)

    def _await_work(self) -> bool:
        """False when the thread shall end: it has left nothing behind."""
        with self._changed:
            while not self._way.closed:
                if self._outbox.wanted(self._lane) or (self._stream and self._stream.ended):
                    return True
                if not self._changed.wait(self._means.options.idle_s) and not self._outbox.wanted(self._lane):
                    break
        self._disconnect()
        with self._changed:
            self._way.tell(self._outbox.disconnected(self._lane, "closed"))
            if self._way.closed or not self._outbox.wanted(self._lane):
                self._thread = None
                return False
        return True

    def _step(self, stream: TcpStream) -> None:
        with self._changed:
            if stream.ended:
                raise ConnectionResetError(stream.ended)
            now = self._means.clock.now()
            due = self._outbox.next(self._lane, now)
            if due is None:
                self._way.tell([])
                self._changed.wait(self._outbox.wait_s(now, TICK_S))
                return
        if isinstance(due, ChunkDue):
            self._send_chunk(stream, due)
        else:
            stream.send(due)

    def _send_chunk(self, stream: TcpStream, due: ChunkDue) -> None:
        try:
            chunk = self._means.source.export_kv(due.key, due.start, due.stop)
        except KeyError:
            with self._changed:
                self._way.tell(self._outbox.fail(due.transfer, due.attempt, "sequence_closed"))
            return
        parts = self._packed(due, chunk) if due.codec else []
        if not parts:
            due, parts = replace(due, codec=""), [chunk.data.cast("B")]
        lent = due.codec and self._means.codecs[due.codec].done
        with self._changed:
            self._outbox.crossing(self._lane, due, chunk.data.nbytes if lent else sum(part.nbytes for part in parts))
        stream.send(due.frame(wire_shape(chunk.shape), parts), parts)

    def _packed(self, due: ChunkDue, chunk: KvChunk) -> list[memoryview]:
        """The payload as it crosses; none: as it is."""
        payload, codec = chunk.data.cast("B"), self._means.codecs[due.codec]
        clock, began = self._means.clock, self._means.clock.now()
        parts = codec.pack(payload, chunk.shape.dtype)
        now, size = clock.now(), sum(part.nbytes for part in parts)
        if parts and codec.done:
            self._lent[due.transfer, due.attempt, due.start, due.stop] = partial(codec.done, parts)
            return parts
        with self._changed:
            self._outbox.packing.learned(due.codec, payload.nbytes, size, now - began, now)
        return parts

    # -- the connection -----------------------------------------------------------------------------------------------

    def _connect(self) -> TcpStream:
        options = self._means.options
        with self._changed:
            wait_s = max(0.0, self._connect_at - self._means.clock.now())
            if self._changed.wait_for(lambda: self._way.closed, wait_s):
                raise ConnectionAbortedError("closed")
            self._backoff_s = min(max(2 * self._backoff_s, options.backoff_s), options.backoff_max_s)
            self._connect_at = self._means.clock.now() + self._backoff_s
            self._lane.dialing = True
        below, channel = dial(self._way.address, self._way.near, options, self._means.tls)
        stream = TcpStream(channel)
        try:
            self._greet(stream)
        except BaseException:
            stream.close()
            raise
        self._socket, self._fare, self._paced_at = below, None, math.inf
        self._listener = threading.Thread(target=self._listen, args=(stream,), daemon=True)
        self._listener.name = f"kv-answers {self._way.address} {self._lane.number}"
        self._listener.start()
        return stream

    def _greet(self, stream: TcpStream) -> None:
        stream.receive_timeout(self._means.options.connect_s)
        began = self._means.clock.now()
        stream.send(msgspec.structs.replace(self._means.hello, lane=self._lane.number))
        answer = stream.read_frame()
        if answer is None:
            raise TimeoutError("no greeting came")
        if isinstance(answer, Refuse):
            raise LineRefused(answer.reason)
        if not isinstance(answer, Hello):
            raise FrameError(f"a connection begins with Hello, not {type(answer).__name__}")
        stream.receive_timeout(TICK_S)
        with self._changed:
            now = self._means.clock.now()
            self._stream = stream
            self._outbox.connected(self._lane, answer, now, now - began)
            if self._way.closed:
                stream.hang_up("closed")
            self._changed.notify_all()  # other lanes may leave our transfers to us

    def _lost(self, error: Exception) -> None:
        connected = self._stream is not None
        reason = "silent" if self._stream and self._stream.ended == "silent" else reason_of(error, connected)
        self._disconnect()
        if connected:
            self._means.notes.note(Count("pdd_kv_connections_lost_total", (("site", self._way.site),)))
        with self._changed:
            if connected:
                if self._lane.answered:
                    self._backoff_s = self._connect_at = 0.0
                self._way.tell(self._outbox.disconnected(self._lane, reason))
            else:
                self._way.tell(self._outbox.unreachable(self._lane, reason))
            self._changed.notify_all()

    def _disconnect(self) -> None:
        if self._stream is None:
            return
        self._stream.hang_up("lost")
        if self._listener:
            self._listener.join()
        with self._changed:
            while self._lent:
                self._lent.popitem()[1]()
            self._stream.close()
            self._stream = self._listener = self._socket = None
            self._lane.up = False

    def _listen(self, stream: TcpStream) -> None:
        """Hear the answers until the stream ends; a silent line ends it."""
        why = "lost"
        try:
            while not stream.ended:
                frame = stream.read_frame()
                with self._changed:
                    now = self._means.clock.now()
                    if frame is not None:
                        self._look(now)
                        self._answered(frame)
                        self._way.tell(self._outbox.receive(self._lane, frame, now))
                    elif self._outbox.overdue(self._lane, now):
                        why = "silent"
                        return
                    self._changed.notify_all()
        except (OSError, FrameError):
            pass
        finally:
            with self._changed:
                stream.hang_up(why)
                self._changed.notify_all()

    def _answered(self, frame: Frame) -> None:
        if isinstance(frame, AckFrame | Refuse):
            if done := self._lent.pop((frame.transfer, frame.attempt, frame.start, frame.stop), None):
                done()

    def _look(self, now: float) -> None:
        """Ask the kernel how the connection fares: the queue and the loss on the way."""
        if not self._lane.sent.payload_bytes or self._socket is None:
            return
        seen = fare(self._socket.socket)
        if seen is None:
            return
        before, self._fare = self._fare, seen
        if before:
            link = self._outbox.link
            link.on_segments(seen.segments - before.segments, seen.again - before.again)
            link.on_loaded_round_trip(seen.rtt_s, now)
