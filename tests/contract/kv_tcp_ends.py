"""Links over TCP for tests, and sockets that call them."""

import contextlib
import socket
from collections.abc import Iterator

from pdd.adapters.kv_intake import wire_shape
from pdd.adapters.kv_tcp import TcpKvLink
from pdd.adapters.kv_tcp_socket import TcpOptions, host_and_port
from pdd.core.events import KvCloseAcked
from pdd.core.ids import Peer, Role
from pdd.core.wire import ChunkFrame, Decoder, Frame, OpenFrame
from tests.contract.kv_bench import KEY, SECRET, SHAPE, End, Monotonic, T, TcpBench

PER_TOKEN = SHAPE.bytes_per_token
STRANGER = Peer("x", Role.PREFILL, "nobody", 1)


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


def make_link(end: End, options: TcpOptions, port: int = 0) -> TcpKvLink:
    link = TcpKvLink(
        end.peer, listen=("127.0.0.1", port), fingerprint="f", source=end.pages, sink=end.sink, notes=end.notes,
        clock=Monotonic(), staging_bytes=1 << 28, options=options,
    )  # fmt: skip
    link.start()
    return link


@contextlib.contextmanager
def both(bench: TcpBench) -> Iterator[None]:
    assert isinstance(bench.sender.link, TcpKvLink) and isinstance(bench.receiver.link, TcpKvLink)
    with contextlib.closing(bench.receiver.link), contextlib.closing(bench.sender.link):
        yield


def open_frame(bench: TcpBench) -> OpenFrame:
    return OpenFrame(T, 1, KEY.epoch, bench.receiver.peer, SECRET, wire_shape(SHAPE))


def chunk_frame(start: int, stop: int) -> Frame:
    size = (stop - start) * PER_TOKEN
    return ChunkFrame(T, 1, KEY.epoch, start, stop, 0, SHAPE.layers, "float32", 0, size)
