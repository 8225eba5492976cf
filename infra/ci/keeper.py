"""The first process of a place apart (apart.py): starts the command that it is told, and ends it when its standard input ends.

So whoever started it may be killed in any way: the command is asked to end, and once this process is gone, the kernel ends all that
the command left there. Needs the standard library alone; run by its path.
"""

import os
import select
import subprocess
import sys
import time

STOP_S, LOOK_S = 20.0, 0.2


def keep(command: list[str]) -> int:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN | select.POLLHUP)
    while not poll.poll(LOOK_S * 1000):
        if ended(process.pid):
            return 1
    process.terminate()
    until = time.monotonic() + STOP_S
    while time.monotonic() < until:
        if ended(process.pid):
            return 0
        time.sleep(LOOK_S)
    return 1


def ended(pid: int) -> bool:
    """Takes leave of every process that ended: orphans are the first process's children."""
    while True:
        try:
            gone, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if gone in (0, pid):
            return gone == pid


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
