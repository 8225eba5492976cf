"""Holds every packet of an NFQUEUE for a fixed time, then lets it through: a line's delay where the kernel has no netem.

Runs inside the network namespace whose packets it holds: `nsenter --net=... python delay.py QUEUE DELAY_MS`. Needs root and the
standard library. Prints "ready" once packets are held; ends when its standard input does. While it does not run, packets pass (the
rule says --queue-bypass).
"""

import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator

NETFILTER = 12  # linux/netlink.h
QUEUE_SUBSYSTEM = 3  # linux/netfilter/nfnetlink.h
PACKET, VERDICT, CONFIG = 0, 1, 2  # linux/netfilter/nfnetlink_queue.h
CONFIG_COMMAND, CONFIG_PARAMETERS, CONFIG_LENGTH, CONFIG_MASK, CONFIG_FLAGS = 1, 2, 3, 4, 5
PACKET_HEADER, VERDICT_HEADER = 1, 2
BIND, COPY_META, ACCEPT = 1, 1, 1
FAIL_OPEN, KEEP_SEGMENTS = 1, 4
SOL_NETLINK, NO_ENOBUFS = 270, 5
RECEIVE_BUFFER_FORCE = 33
MOST_HELD, BUFFER_BYTES = 20_000, 16 << 20


def attribute(kind: int, data: bytes) -> bytes:
    size = 4 + len(data)
    return struct.pack("=HH", size, kind) + data + b"\0" * (-size % 4)


class Queue:
    def __init__(self, number: int) -> None:
        self._number = number
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER)
        self.socket.bind((0, 0))
        self.socket.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER_FORCE, BUFFER_BYTES)
        self.socket.setsockopt(SOL_NETLINK, NO_ENOBUFS, 1)
        self._configure(attribute(CONFIG_COMMAND, struct.pack("!BBH", BIND, 0, 0)))
        self._configure(attribute(CONFIG_PARAMETERS, struct.pack("!IB", 0, COPY_META)))
        self._configure(attribute(CONFIG_LENGTH, struct.pack("!I", MOST_HELD)))
        flags = struct.pack("!I", FAIL_OPEN | KEEP_SEGMENTS)
        self._configure(attribute(CONFIG_FLAGS, flags) + attribute(CONFIG_MASK, flags))
        self.socket.setblocking(False)

    def arrived(self) -> Iterator[int]:
        """The numbers of the packets that came since."""
        while True:
            try:
                data = self.socket.recv(1 << 16)
            except BlockingIOError:
                return
            yield from _packets(data)

    def let_through(self, packets: list[int]) -> None:
        verdicts = (attribute(VERDICT_HEADER, struct.pack("!II", ACCEPT, packet)) for packet in packets)
        self.socket.send(b"".join(self._message(VERDICT, verdict, flags=1) for verdict in verdicts))

    def _configure(self, attributes: bytes) -> None:
        self.socket.send(self._message(CONFIG, attributes, flags=5))  # a request that wants an answer
        error = struct.unpack_from("=i", self.socket.recv(1 << 16), 16)[0]
        if error:
            sys.exit(f"the kernel refuses queue {self._number}: error {-error}")

    def _message(self, kind: int, attributes: bytes, *, flags: int) -> bytes:
        body = struct.pack("!BBH", socket.AF_UNSPEC, 0, self._number) + attributes
        return struct.pack("=IHHII", 16 + len(body), QUEUE_SUBSYSTEM << 8 | kind, flags, 0, 0) + body


def _packets(data: bytes) -> Iterator[int]:
    """The packet numbers in one datagram of netlink messages."""
    at = 0
    while at + 20 <= len(data):
        size, kind = struct.unpack_from("=IH", data, at)
        if kind == QUEUE_SUBSYSTEM << 8 | PACKET:
            yield from _packet_number(data, at + 20, at + size)
        at += (size + 3) & ~3


def _packet_number(data: bytes, at: int, end: int) -> Iterator[int]:
    while at + 4 <= end:
        size, kind = struct.unpack_from("=HH", data, at)
        if kind & 0x7FFF == PACKET_HEADER:
            yield struct.unpack_from("!I", data, at + 4)[0]
            return
        at += (size + 3) & ~3


def hold(queue: Queue, delay_s: float) -> None:
    """Until standard input ends. Each packet waits equally long, so they leave in the order of their coming."""
    held: deque[tuple[float, int]] = deque()
    poll = select.poll()
    poll.register(queue.socket, select.POLLIN)
    poll.register(sys.stdin, select.POLLIN | select.POLLHUP)
    while True:
        wait_s = max(0.0, held[0][0] - time.monotonic()) if held else None
        if any(file == sys.stdin.fileno() for file, _ in poll.poll(None if wait_s is None else wait_s * 1000)):
            return
        now = time.monotonic()
        held.extend((now + delay_s, packet) for packet in queue.arrived())
        due = []
        while held and held[0][0] <= now:
            due.append(held.popleft()[1])
        if due:
            queue.let_through(due)


if __name__ == "__main__":
    opened = Queue(int(sys.argv[1]))
    print("ready", flush=True)
    hold(opened, float(sys.argv[2]) / 1000)
