"""What sockets alone do here: threads that send and receive cold memory, with nothing around it. Two processes, as ours are.

`python -m bench.line.bare HOST STREAMS BYTES` receives, and says its port and then the processor time it took.
"""

import json
import resource
import socket
import subprocess
import sys
import threading
import time

from .pages import BUFFER_BYTES
from .pair import ROOT

PIECE = 1 << 20


def bare_bytes_per_s(size: int, streams: int) -> tuple[float, float]:
    """Rate, and processor seconds of both ends."""
    each = size // streams
    command = [sys.executable, "-m", "bench.line.bare", "127.0.0.1", str(streams), str(each)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as receiver:
        assert receiver.stdout is not None
        port = int(receiver.stdout.readline())
        payload = memoryview(bytearray(b"\x5a" * min(BUFFER_BYTES, size)))
        before, began = _cpu_s(), time.monotonic()
        threads = [threading.Thread(target=_send, args=(port, payload, each, number)) for number in range(streams)]
        _run(threads)
        there = json.loads(receiver.stdout.readline())
        seconds, cpu_s = time.monotonic() - began, _cpu_s() - before
    return each * streams / seconds, cpu_s + float(there["cpu_s"])


def _send(port: int, payload: memoryview, size: int, number: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
        at = number * PIECE
        while size > 0:
            at %= max(1, len(payload) - PIECE)
            connection.sendall(payload[at : at + min(PIECE, size)])
            size, at = size - PIECE, at + 7 * PIECE


def _receive(connection: socket.socket, size: int) -> None:
    target = memoryview(bytearray(size))
    with connection:
        while target:
            target = target[connection.recv_into(target, target.nbytes, socket.MSG_WAITALL) :]


def _run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main(words: list[str]) -> None:
    host, streams, size = words[0], int(words[1]), int(words[2])
    with socket.create_server((host, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connections = [listener.accept()[0] for _ in range(streams)]
    before = _cpu_s()
    _run([threading.Thread(target=_receive, args=(connection, size)) for connection in connections])
    print(json.dumps({"cpu_s": _cpu_s() - before}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
