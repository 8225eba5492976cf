"""Who connects and is none of ours, or says what ours never say: hears nothing, gets nothing, costs little."""

import contextlib
import time
from collections.abc import Iterator

import pytest

from pdd.adapters.kv_tcp_socket import TcpOptions
from pdd.core.events import KvDamaged
from pdd.core.ids import TransferId
from pdd.core.wire import PROTOCOL, Hello, Ping, Refuse, encode
from tests.contract.kv_bench import End, Pages, T, TcpBench
from tests.contract.kv_tcp_ends import (
    PER_TOKEN,
    STRANGER,
    call,
    ended,
    heard,
    make_link,
    open_frame,
    receiver,
    transfer_works,
)


@pytest.fixture
def bench() -> Iterator[TcpBench]:
    made = TcpBench(4096 * PER_TOKEN, 16)
    yield made
    made.close()


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
        connection.sendall(encode(open_frame(bench)) + b"\0" * 100)
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
