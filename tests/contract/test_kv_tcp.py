"""What only a real socket can do wrong: dead idle connections, ports, threads, slow receivers, and the line's rate."""

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from infra.wan.line import Line
from infra.wan.state import MBIT, Change
from pdd.adapters.kv_tcp import TcpKvLink
from pdd.adapters.kv_tcp_socket import TcpOptions, host_and_port
from pdd.core.effects import ExpectKv, PaceLine
from pdd.core.events import KvCloseAcked, KvClosed, KvDamaged, KvExpected, LineMeasured, TransferFailed
from pdd.core.ids import Epoch, Key, RequestId, TransferId
from pdd.core.wire import PROTOCOL, Hello, Ping, encode
from pdd.ports import KvShape
from tests.contract.kv_bench import SECRET, End, Monotonic, Pages, T, TcpBench
from tests.contract.kv_relay import Relay
from tests.contract.kv_tcp_ends import (
    PER_TOKEN,
    STRANGER,
    both,
    call,
    chunk_frame,
    ended,
    heard,
    make_link,
    open_frame,
    receiver,
    transfer_works,
)

OTHER = TransferId("r2.1.md.1")
OTHER_KEY = Key(RequestId("r2"), Epoch(1))


@pytest.fixture
def bench() -> Iterator[TcpBench]:
    made = TcpBench(4096 * PER_TOKEN, 16)
    yield made
    made.close()


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
        hanging.sendall(encode(open_frame(bench)) + encode(Ping(1)) + encode(chunk_frame(0, 16)) + bytes(100))
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


def test_a_receiver_that_takes_nothing_is_sent_no_more_than_its_credit(bench: TcpBench) -> None:
    credit = 64 * PER_TOKEN
    slow = make_link(bench.receiver, replace(bench.options, credit_bytes=credit, silence_s=5.0))
    with contextlib.closing(slow), contextlib.closing(Relay(slow.address)) as relay:
        bench.receiver.link, bench.address = slow, relay.address
        bench.expect(0, 4000)
        bench.open()
        bench.offer(0, 100)
        bench.until(lambda: bench.receiver.landed_tokens() == 100)
        relay.stall()
        bench.offer(100, 4000)
        bench.until_event(bench.sender, LineMeasured, times=len(bench.sender.all(LineMeasured)) + 2)
        sent = sum(stop - start for start, stop in bench.sender.pages.exported)
        assert sent > 100 and (sent - 100) * PER_TOKEN <= credit
        relay.restore()
        bench.finish()
        bench.until_event(bench.sender, KvCloseAcked)
        assert bench.receiver.landed_tokens() == 4000
        bench.drop()


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
    with both(bench), over_line(bench, 40, 20):
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
    with both(bench), over_line(bench, 20, 10):
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


def test_a_lease_may_be_used_whole_by_the_one_connection_that_has_something_to_send() -> None:
    """And what a slower lease made wait does not wait any longer once it has risen."""
    bench, lease = wide_bench(), 0.5e6
    with both(bench):
        assert isinstance(bench.sender.link, TcpKvLink) and isinstance(bench.receiver.link, TcpKvLink)
        bench.address = bench.receiver.link.address
        bench.expect(0, 200)
        bench.open()  # makes the way known
        for bytes_per_s in (1e3, lease):
            until = Monotonic.now() + 60
            bench.sender.link.pace(PaceLine(bench.receiver.peer.site, bytes_per_s, bytes_per_s, until))
            if bytes_per_s < lease:
                bench.offer(0, 2)  # one chunk
                bench.until(lambda: bench.receiver.landed_tokens() == 2)
        began = Monotonic.now()
        bench.offer(2, 200)
        bench.finish()
        bench.until_event(bench.sender, KvCloseAcked, seconds=20)
        assert Monotonic.now() - began < 2 * 198 * bench.sender.pages.kv_shape.bytes_per_token / lease


def test_a_cut_line_that_comes_back_carries_the_rest() -> None:
    bench = wide_bench()
    with both(bench), over_line(bench, 40, 5) as change:
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


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
