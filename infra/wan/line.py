"""A line between two sites, in user space: every connection through it is delayed, and all of them share its rate.

Like a real line it holds little: what is on the way, and a short queue; beyond that TCP's own back-pressure reaches the sender.
"""

import asyncio
import contextlib
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .direction import Direction
from .state import MBIT, Change, LineState, Map

QUEUE_S = 0.02  # reserved and not left; then nobody reads on
HELD_BYTES = 256 << 10  # of one connection, beyond twice what the line holds, at the most
HELD_BYTES_UNLIMITED = 32 << 20
SOCKET_BYTES = 128 << 10  # the same, where it comes in
BUFFER_S, BUFFER_BYTES = 0.05, 8 << 10  # on a slow line less: what it carries in so long, and at least so much
CONNECT_S = 5.0
CLOSE_S = 5.0

Way = tuple[int, asyncio.StreamReader, asyncio.StreamWriter]  # direction 0 (from a) or 1 (from b), source, target


@dataclass(eq=False)
class Listener:
    host: str
    port: int
    target: tuple[str, int]
    opened_from: str
    server: asyncio.Server | None = None
    bytes_from: list[int] = field(default_factory=lambda: [0, 0])

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


class Line:
    """Use inside a running loop. `close` ends everything."""

    def __init__(self, rate_mbit: float, delay_ms: float) -> None:
        self._rate_mbit, self._delay_ms = rate_mbit, delay_ms
        self._directions = (Direction(rate_mbit * MBIT), Direction(rate_mbit * MBIT))
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._cut = False
        self._listeners: list[Listener] = []
        self._connections: dict[asyncio.Task[None], None] = {}

    # -- what the operator does ---------------------------------------------------------------------------------------

    async def listen(self, host: str, port: int, target: tuple[str, int], opened_from: str = "a") -> int:
        """Take connections for `target`. Returns the port. Raises OSError where it is taken."""
        listener = Listener(host, port, target, opened_from)
        await self._bind(listener)
        self._listeners.append(listener)
        return listener.port

    async def change(self, change: Change) -> None:
        if change.rate_mbit is not None:
            self._rate_mbit = change.rate_mbit
            for direction in self._directions:
                direction.change_rate(change.rate_mbit * MBIT, _now())
        if change.delay_ms is not None:
            self._delay_ms = change.delay_ms
        if change.stall is not None:
            (self._flowing.clear if change.stall else self._flowing.set)()
        if change.cut is not None and change.cut != self._cut:
            self._cut = change.cut
            await (self._break() if change.cut else self._mend())

    @property
    def state(self) -> LineState:
        maps = tuple(
            Map(one.address, f"{one.target[0]}:{one.target[1]}", one.opened_from, *one.bytes_from)
            for one in self._listeners
        )
        return LineState(
            self._rate_mbit,
            self._delay_ms,
            not self._flowing.is_set(),
            self._cut,
            sum(one.bytes_from_a for one in maps),
            sum(one.bytes_from_b for one in maps),
            len(self._connections),
            maps,
        )

    async def close(self) -> None:
        await self._break()

    async def _break(self) -> None:
        """Reset what is open; the ports refuse from now on."""
        for listener in self._listeners:
            if listener.server:
                listener.server.close()
                listener.server = None
        connections = list(self._connections)
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    async def _mend(self) -> None:
        for listener in self._listeners:
            await self._bind(listener)

    async def _bind(self, listener: Listener) -> None:
        family = socket.AF_INET6 if ":" in listener.host else socket.AF_INET
        most = self._buffer(SOCKET_BYTES)  # by the rate of this moment
        bound = socket.socket(family)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, most)  # accepted sockets inherit it
            bound.bind((listener.host, listener.port))
        except OSError:
            bound.close()
            raise
        listener.port = bound.getsockname()[1]
        listener.server = await asyncio.start_server(
            lambda reader, writer: self._take(listener, reader, writer), sock=bound, limit=most
        )

    # -- one connection -----------------------------------------------------------------------------------------------

    def _take(self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(listener, reader, writer))
        self._connections[task] = None
        task.add_done_callback(lambda done: self._connections.pop(done, None))

    async def _serve(self, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both ways until both have ended, or one broke: then both ends are reset."""
        writers = [writer]
        _tune(writer)
        try:
            far_reader, far_writer = await _connect(listener.target)
            writers.append(far_writer)
            forth = 0 if listener.opened_from == "a" else 1
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(listener, (forth, reader, far_writer)))
                both.create_task(self._carry(listener, (1 - forth, far_reader, writer)))
            for one in writers:
                await _close(one)
        except* (OSError, TimeoutError):
            pass  # the target is away, or one end has reset: the other is reset too
        finally:
            for one in writers:
                _reset(one)

    async def _carry(self, listener: Listener, way: Way) -> None:
        held = Held()
        async with asyncio.TaskGroup() as both:
            both.create_task(self._fill(held, way))
            both.create_task(self._empty(held, listener, way))

    async def _fill(self, held: "Held", way: Way) -> None:
        number, reader, _ = way
        direction = self._directions[number]
        while True:
            await self._flowing.wait()
            await held.wait_below(self._held_limit())
            while (wait_s := direction.backlog_s(_now()) - QUEUE_S) > 0:
                await asyncio.sleep(wait_s)
            data = await reader.read(direction.piece_bytes)
            held.put(direction.reserve(len(data), _now()) + self._delay_ms / 1000, data)
            if not data:
                return

    async def _empty(self, held: "Held", listener: Listener, way: Way) -> None:
        number, _, writer = way
        while True:
            due, data = await held.get()
            while (wait_s := due - _now()) > 0:
                await asyncio.sleep(wait_s)
            await self._flowing.wait()
            if not data:
                with contextlib.suppress(OSError):
                    writer.write_eof()
                return
            listener.bytes_from[number] += len(data)
            writer.write(data)
            await writer.drain()

    def _held_limit(self) -> int:
        if not self._rate_mbit:
            return HELD_BYTES_UNLIMITED
        return self._buffer(HELD_BYTES) + int(2 * self._rate_mbit * MBIT * self._delay_ms / 1000)

    def _buffer(self, most: int) -> int:
        return max(BUFFER_BYTES, min(most, int(self._rate_mbit * MBIT * BUFFER_S))) if self._rate_mbit else most


class Held:
    """Pieces of one way that are on the line, with the time at which each arrives. An empty piece is the end."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._size = 0
        self._changed = asyncio.Event()

    def put(self, due: float, data: bytes) -> None:
        self._pieces.append((due, data))
        self._size += len(data)
        self._changed.set()

    async def get(self) -> tuple[float, bytes]:
        await self._wait(lambda: bool(self._pieces))
        due, data = self._pieces.popleft()
        self._size -= len(data)
        self._changed.set()
        return due, data

    async def wait_below(self, limit: int) -> None:
        await self._wait(lambda: self._size < limit)

    async def _wait(self, ready: Callable[[], bool]) -> None:
        while not ready():
            self._changed.clear()
            await self._changed.wait()


async def _connect(target: tuple[str, int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    async with asyncio.timeout(CONNECT_S):
        reader, writer = await asyncio.open_connection(*target, limit=SOCKET_BYTES)
    _tune(writer)
    return reader, writer


def _tune(writer: asyncio.StreamWriter) -> None:
    connection: socket.socket = writer.get_extra_info("socket")
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    writer.transport.set_write_buffer_limits(high=SOCKET_BYTES)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    async with asyncio.timeout(CLOSE_S):
        await writer.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Nothing, where it is closed already."""
    connection: socket.socket = writer.get_extra_info("socket")
    if not writer.transport.is_closing():
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _now() -> float:
    return asyncio.get_running_loop().time()
