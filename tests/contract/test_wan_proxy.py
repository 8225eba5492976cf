"""The line in user space: never faster than it is set, whole and in order, stalled and cut when told."""

import asyncio
import contextlib
import http.client
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.wan.control import LineError, change_line, read_line, serve_control
from infra.wan.direction import Direction
from infra.wan.line import QUEUE_S, Line
from infra.wan.proxy import arguments
from infra.wan.state import MBIT, Change

WAIT_S = 20.0
Test = Callable[[Line, int], Awaitable[None]]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def over(rate_mbit: float, delay_ms: float, test: Test) -> None:
    """Run `test` with a line to an echo: what is sent comes back over the same line."""

    async def run() -> None:
        line = Line(rate_mbit, delay_ms)
        async with echo() as port:
            at = await line.listen("127.0.0.1", 0, ("127.0.0.1", port))
            try:
                async with asyncio.timeout(WAIT_S):
                    await test(line, at)
            finally:
                await line.close()

    asyncio.run(run())


@contextlib.asynccontextmanager
async def echo() -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[Ends]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def there_and_back(ends: Ends, payload: bytes) -> float:
    """Seconds until all of it was back, unchanged."""
    reader, writer = ends
    began = time.monotonic()
    writer.write(payload)
    assert await reader.readexactly(len(payload)) == payload
    return time.monotonic() - began


# -- one direction, as arithmetic -------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 0.1)), min_size=1, max_size=50), st.floats(1e3, 1e9))
def test_no_stretch_of_time_carries_more_than_the_rate(asked: list[tuple[int, float]], rate: float) -> None:
    direction, now, left = Direction(rate), 0.0, []
    for count, passed in asked:
        now += passed
        left.append((direction.reserve(count, now), count))
    for first in range(len(left)):
        began = left[first][0] - left[first][1] / rate
        carried = sum(count for _, count in left[first:])
        assert carried <= (left[-1][0] - began) * rate * (1 + 1e-6) + 1e-3


def test_a_new_rate_holds_for_what_is_still_queued() -> None:
    direction = Direction(1000)
    direction.reserve(5000, 0.0)
    direction.change_rate(10_000, 1.0)
    assert direction.backlog_s(1.0) == pytest.approx(0.4)
    direction.change_rate(0, 1.0)
    assert direction.reserve(10**9, 1.0) == 1.0


# -- the line ---------------------------------------------------------------------------------------------------------


def test_bytes_take_the_delay_each_way_and_no_less() -> None:
    async def test(line: Line, port: int) -> None:
        async with connected(port) as ends:
            seconds = [await there_and_back(ends, b"x") for _ in range(3)]
            assert min(seconds) >= 0.08
            assert min(seconds) < 0.08 + 0.06

    over(0, 40, test)


def test_nothing_passes_faster_than_the_rate_and_all_of_it_passes() -> None:
    payload = bytes(range(256)) * 4096  # 1 MiB

    async def test(line: Line, port: int) -> None:
        async with connected(port) as ends:
            seconds = await there_and_back(ends, payload)
        least = len(payload) / (20 * MBIT)
        assert least <= seconds < 2.5 * least
        assert (line.state.bytes_from_a, line.state.bytes_from_b) == (len(payload), len(payload))

    over(20, 0, test)


def test_connections_share_the_rate() -> None:
    payload = bytes(300_000)

    async def test(line: Line, port: int) -> None:
        async with connected(port) as one, connected(port) as other:
            seconds = await asyncio.gather(there_and_back(one, payload), there_and_back(other, payload))
        assert max(seconds) >= 2 * len(payload) / (16 * MBIT)
        assert min(seconds) >= 0.6 * max(seconds)

    over(16, 0, test)


def test_a_small_exchange_beside_a_big_one_waits_for_a_short_queue_only() -> None:
    async def test(line: Line, port: int) -> None:
        async with connected(port) as bulk, connected(port) as small:
            bulk[1].write(bytes(4_000_000))
            await bulk[0].readexactly(200_000)
            assert await there_and_back(small, b"x") < 10 * QUEUE_S + 0.2

    over(20, 5, test)


def test_what_waits_on_a_line_is_bounded_and_the_sender_feels_it() -> None:
    async def test(line: Line, port: int) -> None:
        await line.change(Change(stall=True))
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.transport.set_write_buffer_limits(high=0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                while True:
                    writer.write(bytes(100_000))
                    await writer.drain()
        writer.transport.abort()

    over(20, 5, test)


def test_a_stalled_line_holds_everything_and_loses_nothing() -> None:
    async def test(line: Line, port: int) -> None:
        async with connected(port) as ends:
            await there_and_back(ends, b"warm")
            await line.change(Change(stall=True))
            echoed = asyncio.ensure_future(there_and_back(ends, bytes(50_000)))
            done, _ = await asyncio.wait([echoed], timeout=0.3)
            assert not done and line.state.stall
            await line.change(Change(stall=False))
            assert await echoed >= 0.3

    over(50, 1, test)


def test_a_cut_line_resets_and_refuses_and_works_again_on_the_same_port() -> None:
    async def test(line: Line, port: int) -> None:
        async with connected(port) as ends:
            await there_and_back(ends, b"warm")
            await line.change(Change(cut=True))
            with pytest.raises(ConnectionResetError):
                await ends[0].read()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert line.state.cut and not line.state.connections
        await line.change(Change(cut=False))
        async with connected(port) as ends:
            await there_and_back(ends, b"again")

    over(0, 1, test)


def test_rate_and_delay_change_while_connections_run() -> None:
    async def test(line: Line, port: int) -> None:
        async with connected(port) as ends:
            assert await there_and_back(ends, bytes(100_000)) < 0.5
            await line.change(Change(rate_mbit=4, delay_ms=50))
            assert await there_and_back(ends, bytes(100_000)) >= 0.1 + 100_000 / (4 * MBIT)
            await line.change(Change(rate_mbit=0, delay_ms=0))
            assert await there_and_back(ends, bytes(100_000)) < 0.5

    over(0, 0, test)


def test_an_end_passes_after_the_bytes_before_it() -> None:
    async def test(line: Line, port: int) -> None:
        async with connected(port) as (reader, writer):
            writer.write(bytes(200_000))
            writer.write_eof()
            assert len(await reader.read(-1)) == 200_000

    over(50, 5, test)


def test_a_target_that_is_away_resets_the_connection() -> None:
    async def test(line: Line, _: int) -> None:
        with socket.create_server(("127.0.0.1", 0)) as unused:
            closed_port = unused.getsockname()[1]
        port = await line.listen("127.0.0.1", 0, ("127.0.0.1", closed_port))
        async with connected(port) as (reader, _):
            with pytest.raises(ConnectionResetError):
                await reader.read()

    over(0, 0, test)


# -- control ----------------------------------------------------------------------------------------------------------


def test_the_control_port_shows_and_changes_the_line() -> None:
    async def test(line: Line, port: int) -> None:
        control = await serve_control(line, "127.0.0.1", 0)
        at = f"127.0.0.1:{control.sockets[0].getsockname()[1]}"
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1) as pool:
            state = await loop.run_in_executor(pool, read_line, at)
            assert (state.rate_mbit, state.delay_ms, state.stall, state.cut) == (20, 5, False, False)
            assert state.maps[0].listen == f"127.0.0.1:{port}" and state.maps[0].opened_from == "a"
            state = await loop.run_in_executor(pool, change_line, at, Change(rate_mbit=3, stall=True))
            assert (state.rate_mbit, state.delay_ms, state.stall) == (3, 5, True)
            assert await loop.run_in_executor(pool, _post, at, b'{"rate_mbit": -1}') == 400
            assert await loop.run_in_executor(pool, _post, at, b'{"speed": 1}') == 400
            assert line.state.rate_mbit == 3
        control.close()

    over(20, 5, test)


def _post(control: str, body: bytes) -> int:
    connection = http.client.HTTPConnection(control, timeout=5)
    with contextlib.closing(connection):
        connection.request("POST", "/", body)
        return connection.getresponse().status


def test_nobody_at_the_control_port_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(LineError, match="no line answers"):
        read_line(f"127.0.0.1:{port}")


def test_the_command_serves_and_ends_on_a_signal() -> None:
    with socket.create_server(("127.0.0.1", 0)) as target, socket.create_server(("127.0.0.1", 0)) as unused:
        control, _ = unused.getsockname()[1], unused.close()
        words = ["--rate-mbit", "20", "--delay-ms", "5", "--control", f"127.0.0.1:{control}"]
        words += ["--map", f"127.0.0.1:0=127.0.0.1:{target.getsockname()[1]}"]
        command = [sys.executable, "-m", "infra.wan.proxy", *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout and process.stdout.readline().startswith("line: 20 Mbit/s")
            listen = read_line(f"127.0.0.1:{control}").maps[0].listen
            with socket.create_connection(("127.0.0.1", int(listen.rpartition(":")[2])), timeout=5) as near:
                near.sendall(b"through")
                far, _ = target.accept()
                with far:
                    far.settimeout(5)
                    assert far.recv(100) == b"through"
            process.send_signal(signal.SIGTERM)
            assert process.wait(10) == 0


@pytest.mark.parametrize(
    "words", [["--map", "nonsense"], ["--control", "9"], ["--control", "127.0.0.1:1", "--rate-mbit", "-3"]]
)
def test_wrong_words_are_refused_with_a_usage_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(words)
    assert "usage" in capsys.readouterr().err
