"""What a KV connection asks of the kernel: congestion control by distance, buffers, and a pace that holds."""

import contextlib
import socket
import struct
from collections.abc import Iterator

import pytest

from pdd.adapters.kv_tcp_dial import dial
from pdd.adapters.kv_tcp_socket import SO_MAX_PACING_RATE, UNPACED, TcpOptions, fare, listen, pace, tune

KERNELS_OWN = TcpOptions(congestion_far="", congestion_near="")


@pytest.fixture
def address() -> Iterator[str]:
    with listen("127.0.0.1", 0) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def dialed(address: str, options: TcpOptions, near: bool = False) -> Iterator[socket.socket]:
    below, _ = dial(address, near, options, None)
    try:
        yield below.socket
    finally:
        below.close()


def congestion(connection: socket.socket) -> str:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def kernels_own(address: str) -> str:
    with dialed(address, KERNELS_OWN) as connection:
        return congestion(connection)


@pytest.mark.parametrize(("near", "expected"), [(False, "cubic"), (True, "reno")])
def test_congestion_control_is_set_for_each_distance(address: str, near: bool, expected: str) -> None:
    with dialed(address, TcpOptions(congestion_far="cubic", congestion_near="reno"), near) as connection:
        assert congestion(connection) == expected


def test_a_congestion_control_that_the_kernel_does_not_have_leaves_its_own(address: str) -> None:
    with dialed(address, TcpOptions(congestion_far="none-such")) as connection:
        assert congestion(connection) == kernels_own(address)


def test_buffers_are_the_kernels_unless_they_are_set(address: str) -> None:
    with dialed(address, TcpOptions()) as own, dialed(address, TcpOptions(buffer_bytes=100_000)) as ours:
        assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 200_000  # Linux doubles it for its own needs
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) != 200_000


def test_a_dead_peer_is_noticed_by_the_kernel_too() -> None:
    with socket.socket() as connection:
        tune(connection, TcpOptions(silence_s=6.0))
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 6000


def test_a_pace_holds_until_it_is_taken_away(address: str) -> None:
    with dialed(address, TcpOptions()) as connection:
        assert fare(connection) is not None
        for rate, said in ((5e6, 5_000_000), (1e3, UNPACED), (float("inf"), UNPACED)):
            pace(connection, rate)
            seen = connection.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, 8)
            assert struct.unpack("@Q", seen)[0] == said
