"""What only a real socket can do wrong: strangers, half frames, dead idle connections, ports, threads, and the line's rate."""

import asyncio
import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from infra.wan.line import Line
from infra.wan.state import MBIT, Change
from pdd.adapters.kv_intake import wire_shape
from pdd.adapters.kv_tcp import TcpKvLink
from pdd.adapters.kv_tcp_socket import TcpOptions, host_and_port
from pdd.core.effects import ExpectKv
from pdd.core.events import KvCloseAcked, KvClosed, KvDamaged, KvExpected, LineMeasured, TransferFailed
from pdd.core.ids import Epoch, Key, Peer, RequestId, Role, TransferId
from pdd.core.wire import PROTOCOL, ChunkFrame, Decoder, Frame, Hello, OpenFrame, Ping, Refuse, encode
from pdd.ports import KvShape
from tests.contract.kv_bench import KEY, SECRET, SHAPE, End, Monotonic, Pages, T, TcpBench

PER_TOKEN = SHAPE.bytes_per_token
OTHER = TransferId("r2.1.md.1")
OTHER_KEY = Key(RequestId("r2"), Epoch(1))
STRANGER = Peer("x", Role.PREFILL, "nobody", 1)


@pytest.fixture
def bench() -> Iterator[TcpBench]:
    made = TcpBench(4096 * PER_TOKEN, 16)
    yield made
    made.close()


def receiver(bench: TcpBench) -> TcpKvLink:
    assert isinstance(bench.receiver.link, TcpKvLink)
    return bench.receiver.link


@contextlib.contextmanager
def call(link: TcpKvLink) -> Iterator[socket.socket]:
    with socket.create_connection(host_and_port(link.address), timeout=5) as connection:
        yield connection


def heard(connection: socket.socket, count: int = 1) -> list[Frame]:
    decoder, found = Decoder(), []
    while len(found) < count and (data := connection.recv(1 << 16)):
        found += decoder.feed(data)
    return [frame for frame in found if isinstance(frame, Frame)]


def ended(connection: socket.socket) -> bool:
    """Does the other side end the connection, in bounded time?"""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass
    return True


def transfer_works(bench: TcpBench) -> None:
    done = len(bench.sender.all(KvCloseAcked))
    bench.expect(0, 100)
    bench.open()
    bench.offer(0, 100)
    bench.finish()
    bench.until_event(bench.sender, KvCloseAcked, times=done + 1)
    bench.drop()


# -- strangers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise",
    [
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 2,
        bytes(200),
        encode(Ping(1)),
        encode(Hello(PROTOCOL, STRANGER, "f"))[:-3],
    ],
)
def test_a_stranger_hears_nothing_and_is_left_within_the_greeting_time(bench: TcpBench, noise: bytes) -> None:
    with call(receiver(bench)) as connection:
        connection.sendall(noise)
        assert heard(connection) == [] and ended(connection)
    transfer_works(bench)


def test_a_silent_stranger_is_left_within_the_greeting_time(bench: TcpBench) -> None:
    with call(receiver(bench)) as connection:
        began = time.monotonic()
        assert ended(connection)
        assert time.monotonic() - began < 3 * bench.options.connect_s


@pytest.mark.parametrize(("protocol", "fingerprint", "reason"), [(2, "f", "version"), (PROTOCOL, "g", "fingerprint")])
def test_a_peer_that_does_not_pair_is_told_why(bench: TcpBench, protocol: int, fingerprint: str, reason: str) -> None:
    with call(receiver(bench)) as connection:
        connection.sendall(encode(Hello(protocol, STRANGER, fingerprint)))
        assert heard(connection) == [Refuse(TransferId(""), 0, reason)] and ended(connection)
    assert bench.receiver.dropped(reason) == 1


def test_of_too_many_half_open_connections_the_oldest_is_left() -> None:
    link = make_link(End(STRANGER, Pages()), TcpOptions(half_open_max=2, connect_s=5))
    with contextlib.closing(link), contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(call(link)) for _ in range(2)]
        ours = stack.enter_context(call(link))
        ours.sendall(encode(Hello(PROTOCOL, STRANGER, "f")))
        assert isinstance(heard(ours)[0], Hello)
        assert ended(strangers[0])
        strangers[1].sendall(encode(Hello(PROTOCOL, STRANGER, "f")))
        assert isinstance(heard(strangers[1])[0], Hello)


def test_a_bad_frame_ends_the_connection_and_damages_what_was_open_on_it(bench: TcpBench) -> None:
    bench.expect(0, 100)
    with call(receiver(bench)) as connection:
        connection.sendall(encode(Hello(PROTOCOL, STRANGER, "f")))
        heard(connection)
        connection.sendall(encode(_open_frame(bench)) + b"\0" * 100)
        assert ended(connection)
    assert bench.until_event(bench.receiver, KvDamaged) == KvDamaged(T, "bad_frame")
    assert bench.receiver.dropped("bad_frame") == 1
    bench.drop()
    transfer_works(bench)


def test_a_hostile_length_is_refused_and_nothing_is_allocated(bench: TcpBench) -> None:
    with call(receiver(bench)) as connection:
        connection.sendall(encode(Hello(PROTOCOL, STRANGER, "f")))
        heard(connection)
        connection.sendall(b"PDDK\x03\0\0\0" + b"\xff" * 16)
        assert ended(connection)


def test_a_sender_that_stops_inside_a_frame_is_left_within_the_silence(bench: TcpBench) -> None:
    with call(receiver(bench)) as connection:
        connection.sendall(encode(Hello(PROTOCOL, STRANGER, "f")))
        heard(connection)
        connection.sendall(encode(Ping(1))[:-1])
        assert ended(connection)


# -- connections ------------------------------------------------------------------------------------------------------


def test_the_same_few_connections_carry_one_transfer_after_another(bench: TcpBench) -> None:
    for _ in range(3):
        transfer_works(bench)
    assert sum(thread.name == "kv-in" for thread in threading.enumerate()) == 2  # for small transfers, and for bulk


def test_an_idle_connection_that_was_cut_behind_our_back_costs_no_transfer(bench: TcpBench) -> None:
    transfer_works(bench)
    bench.cut()
    bench.restore()
    transfer_works(bench)
    assert not bench.sender.all(TransferFailed)


def test_a_restarted_receiver_on_the_same_port_is_found_again(bench: TcpBench) -> None:
    transfer_works(bench)
    old = receiver(bench)
    _, port = host_and_port(old.address)
    old.close()
    bench.receiver.link = make_link(bench.receiver, bench.options, port)
    transfer_works(bench)


def test_a_new_connection_of_the_sender_ends_the_one_that_hangs(bench: TcpBench) -> None:
    """The line died without a word inside a chunk; the sender has come anew and needs that chunk's place."""
    bench.expect(0, 100)
    with call(receiver(bench)) as hanging:
        hanging.sendall(encode(Hello(PROTOCOL, STRANGER, "f")))
        heard(hanging)
        hanging.sendall(encode(_open_frame(bench)) + encode(Ping(1)) + encode(_chunk_frame(0, 16)) + bytes(100))
        heard(hanging)
        bench.open()
        bench.offer(0, 100)
        bench.finish()
        assert ended(hanging)
        bench.until_event(bench.sender, KvCloseAcked)
    assert {event.reason for event in bench.receiver.all(KvDamaged)} <= {"short"}
    assert bench.sender.pages.equal(bench.taken(), 0, 100)


def test_an_idle_line_gives_its_connection_and_thread_back() -> None:
    bench = TcpBench(4096 * PER_TOKEN, 16)
    bench.close()
    bench.options = TcpOptions(connect_s=1, silence_s=1, idle_s=0.1)
    sender = make_link(bench.sender, bench.options)
    bench.sender.link = sender
    bench.receiver.link = make_link(bench.receiver, bench.options)
    bench.address = bench.receiver.link.address
    with contextlib.closing(sender), contextlib.closing(bench.receiver.link):
        transfer_works(bench)
        bench.until(lambda: not any(thread.name.startswith(("kv-out", "kv-in")) for thread in threading.enumerate()))
        transfer_works(bench)


def test_closing_gives_back_every_thread_and_socket() -> None:
    gc.collect()
    before = _descriptors(), threading.active_count()
    bench = TcpBench(4096 * PER_TOKEN, 16)
    bench.slow()
    bench.expect(0, 2000)
    bench.open()
    bench.offer(0, 2000)
    bench.until(lambda: bench.receiver.landed_tokens() > 0)
    bench.drop()
    bench.close()
    assert bench.sender.all(TransferFailed)
    gc.collect()
    bench.until(lambda: (_descriptors(), threading.active_count()) == before)


def test_a_taken_port_is_an_error_at_start(bench: TcpBench) -> None:
    _, port = host_and_port(receiver(bench).address)
    with pytest.raises(OSError):
        make_link(End(STRANGER, Pages()), TcpOptions(), port)


def test_an_address_that_is_none_fails_the_transfer(bench: TcpBench) -> None:
    for address in ("nonsense", "127.0.0.1:1", "no-such-host.invalid:7"):
        bench.address = address
        failed = len(bench.sender.all(TransferFailed))
        bench.open()
        assert bench.until_event(bench.sender, TransferFailed, failed + 1) == TransferFailed(T, "unreachable")


def test_what_is_advertised_stands_in_the_ticket() -> None:
    end = End(STRANGER, Pages())
    link = TcpKvLink(
        end.peer, listen=("127.0.0.1", 0), advertise="md.site-b:7000", fingerprint="f", source=end.pages,
        sink=end.sink, notes=end.notes, clock=Monotonic(), staging_bytes=1 << 20,
    )  # fmt: skip
    link.start()
    with contextlib.closing(link):
        end.link = link
        link.expect(ExpectKv(T, Epoch(1), SECRET, 0, 10))
        assert end.all(KvExpected) == [KvExpected(T, "md.site-b:7000")]


# -- over a line ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def over_line(bench: TcpBench, rate_mbit: float, delay_ms: float) -> Iterator[Callable[[Change], None]]:
    """The receiver is reached through a shaped line, which runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def build() -> tuple[Line, int]:
        line = Line(rate_mbit, delay_ms)
        return line, await line.listen("127.0.0.1", 0, host_and_port(receiver(bench).address))

    line, port = asyncio.run_coroutine_threadsafe(build(), loop).result(5)
    bench.address = f"127.0.0.1:{port}"
    try:
        yield lambda change: asyncio.run_coroutine_threadsafe(line.change(change), loop).result(5)
    finally:
        asyncio.run_coroutine_threadsafe(line.close(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


def wide_bench() -> TcpBench:
    """7,680 bytes a token, so that a few hundred tokens are megabytes."""
    bench = TcpBench(1 << 28, 4096)
    shape = KvShape(10, 4, 48, "bfloat16")
    bench.close()
    bench.sender.pages, bench.receiver.pages = Pages(shape, 1200), Pages(shape, 1)
    bench.sender.link = make_link(bench.sender, bench.options)
    bench.receiver.link = make_link(bench.receiver, bench.options)
    return bench


def test_the_measured_rate_and_round_trip_are_the_lines() -> None:
    bench = wide_bench()
    with _links(bench), over_line(bench, 40, 20):
        bench.expect(0, 1000)
        bench.open()
        bench.offer(0, 1000)
        bench.finish()
        done = bench.until_event(bench.sender, KvCloseAcked, seconds=20)
        line = bench.sender.all(LineMeasured)[-1].line
        assert done.seconds >= done.payload_bytes / (40 * MBIT)
        assert 0.6 * 40 * MBIT <= line.bytes_per_s <= 1.1 * 40 * MBIT
        assert 0.04 <= line.rtt_s <= 0.08
        assert bench.sender.pages.equal(bench.taken(), 0, 1000)


def test_a_small_transfer_passes_a_big_one_on_a_slow_line() -> None:
    bench = wide_bench()
    bench.sender.pages.open.add(OTHER_KEY)
    with _links(bench), over_line(bench, 20, 10):
        bench.expect(0, 1200)
        bench.expect(0, 8, OTHER)
        bench.open()
        bench.offer(0, 1200)
        bench.finish()
        bench.until(lambda: bench.receiver.landed_tokens() > 100)
        bench.open(OTHER, key=OTHER_KEY)
        bench.offer(0, 8, OTHER)
        bench.finish(transfer=OTHER)
        assert bench.until_event(bench.receiver, KvClosed).transfer == OTHER
        small = bench.until_event(bench.sender, KvCloseAcked, seconds=20)
        assert small.transfer == OTHER and small.seconds < 1.5
        bench.cancel()


def test_a_cut_line_that_comes_back_carries_the_rest() -> None:
    bench = wide_bench()
    with _links(bench), over_line(bench, 40, 5) as change:
        bench.expect(0, 600)
        bench.open()
        bench.offer(0, 600)
        bench.until(lambda: bench.receiver.landed_tokens() > 0)
        change(Change(cut=True))
        bench.until_event(bench.sender, TransferFailed)
        change(Change(cut=False))
        bench.until(lambda: not any(thread.name == "kv-in" for thread in threading.enumerate()))
        bench.reopen(0, 600)
        bench.until_event(bench.sender, KvCloseAcked, seconds=20)
        assert bench.sender.pages.equal(bench.taken(), 0, 600)


# -- building ---------------------------------------------------------------------------------------------------------


def make_link(end: End, options: TcpOptions, port: int = 0) -> TcpKvLink:
    link = TcpKvLink(
        end.peer, listen=("127.0.0.1", port), fingerprint="f", source=end.pages, sink=end.sink, notes=end.notes,
        clock=Monotonic(), staging_bytes=1 << 28, options=options,
    )  # fmt: skip
    link.start()
    return link


@contextlib.contextmanager
def _links(bench: TcpBench) -> Iterator[None]:
    assert isinstance(bench.sender.link, TcpKvLink) and isinstance(bench.receiver.link, TcpKvLink)
    with contextlib.closing(bench.receiver.link), contextlib.closing(bench.sender.link):
        yield


def _open_frame(bench: TcpBench) -> OpenFrame:
    return OpenFrame(T, 1, KEY.epoch, bench.receiver.peer, SECRET, wire_shape(SHAPE))


def _chunk_frame(start: int, stop: int) -> Frame:
    size = (stop - start) * PER_TOKEN
    return ChunkFrame(T, 1, KEY.epoch, start, stop, 0, SHAPE.layers, "float32", 0, size)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
