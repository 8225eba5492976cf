"""Holds every packet of one netfilter queue for a fixed time, in user space: delay where the kernel has no netem. Root, Linux.

`python -m infra.wan.delay --queue 7 --delay-ms 25`, in the namespace whose iptables rule sends packets to that queue. Packets keep
their order, so one verdict releases all that are due. Prints "ready", and at the end how late the worst packet was.
"""

import argparse
import contextlib
import os
import select
import signal
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence

# linux/netfilter/nfnetlink_queue.h
NETLINK_NETFILTER = 12
SOL_NETLINK, NETLINK_NO_ENOBUFS = 270, 5
SO_RCVBUFFORCE = 33
SUBSYSTEM = 3
PACKET, VERDICT, CONFIG, VERDICT_BATCH = 0, 1, 2, 3
CFG_CMD, CFG_PARAMS, CFG_QUEUE_MAXLEN, CFG_MASK, CFG_FLAGS = 1, 2, 3, 4, 5
BIND, COPY_META, FAIL_OPEN, GSO = 1, 1, 1, 4
ATTR_VERDICT, NF_ACCEPT = 2, 1

HEAD = struct.Struct("=IHHII")  # nlmsghdr
HEAD_BYTES, FAMILY_BYTES, ATTR_BYTES = HEAD.size, 4, 4
PACKET_ID_AT = HEAD_BYTES + FAMILY_BYTES + ATTR_BYTES  # the first attribute is nfqnl_msg_packet_hdr
BUFFER_BYTES = 32 << 20
KEPT_PACKETS = 60_000
REQUEST, ACK = 1, 4


class DelayQueue:
    """Raises OSError where the kernel has no such queue, or we may not use it."""

    def __init__(self, queue: int) -> None:
        self._queue = queue
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        self._socket.bind((0, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_NO_ENOBUFS, 1)
        self._configure(_attribute(CFG_CMD, struct.pack("!BBH", BIND, 0, 0)))
        self._configure(_attribute(CFG_PARAMS, struct.pack("!IB", 0, COPY_META)))
        self._configure(_attribute(CFG_QUEUE_MAXLEN, struct.pack("!I", KEPT_PACKETS)))
        flags = struct.pack("!I", FAIL_OPEN | GSO)
        self._configure(_attribute(CFG_FLAGS, flags) + _attribute(CFG_MASK, flags))
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._buffer = bytearray(64 << 10)

    def _configure(self, attributes: bytes) -> None:
        self._socket.send(self._message(CONFIG, attributes, REQUEST | ACK))
        (error,) = struct.unpack_from("=i", self._socket.recv(4096), HEAD_BYTES)
        if error:
            raise OSError(-error, "netfilter queue")

    def _message(self, kind: int, attributes: bytes, flags: int = REQUEST) -> bytes:
        body = struct.pack("=BBH", socket.AF_UNSPEC, 0, socket.htons(self._queue)) + attributes
        return HEAD.pack(HEAD_BYTES + len(body), (SUBSYSTEM << 8) | kind, flags, 0, 0) + body

    def wait(self, seconds: float) -> None:
        """Until a packet is there, or for so long."""
        self._poll.poll(max(seconds * 1000, 0.1))

    def packets(self) -> Iterator[int]:
        """Ids of the packets that have come, in order; each queue counts its own from 1."""
        for _ in range(256):
            try:
                count = self._socket.recv_into(self._buffer)
            except BlockingIOError:
                return
            if count > PACKET_ID_AT + 4 and self._buffer[4] == PACKET:
                yield int.from_bytes(self._buffer[PACKET_ID_AT : PACKET_ID_AT + 4], "big")

    def release(self, upto: int) -> None:
        """Every packet up to this one goes on."""
        verdict = _attribute(ATTR_VERDICT, struct.pack("!II", NF_ACCEPT, upto))
        self._socket.send(self._message(VERDICT_BATCH, verdict))

    def run(self, delay_s: float, running: list[bool]) -> tuple[int, float]:
        """Until `running` is empty. Packets held, and by how much the worst was late."""
        held: deque[tuple[float, int]] = deque()
        total, late = 0, 0.0
        while running:
            now = time.monotonic()
            for packet in self.packets():
                held.append((now + delay_s, packet))
                total += 1
            last = None
            while held and held[0][0] <= now:
                due, last = held.popleft()
                late = max(late, now - due)
            if last is not None:
                self.release(last)
            else:
                self.wait(held[0][0] - now if held else 0.05)
        if held:
            self.release(held[-1][1])
        return total, late


def _attribute(kind: int, content: bytes) -> bytes:
    size = 4 + len(content)
    return struct.pack("=HH", size, kind) + content + bytes(-size % 4)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m infra.wan.delay", description=__doc__)
    parser.add_argument("--queue", type=int, required=True)
    parser.add_argument("--delay-ms", type=float, required=True, help="one way")
    told = parser.parse_args(sys.argv[1:] if words is None else words)
    running = [True]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: running.clear())
    try:
        queue = DelayQueue(told.queue)
    except OSError as error:
        print(f"no delay: {error}", file=sys.stderr)
        return 1
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)  # a line is never short of processor time
    print("ready", flush=True)
    total, late = queue.run(told.delay_ms / 1000, running)
    print(f"{total} packets, the worst {late * 1000:.1f} ms late", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
