"""Ports for a deployment on this machine: all of one deployment differ, and none is taken when it is handed out.

They lie below the range that the system uses for outgoing connections, so none is lost between choosing and binding.
"""

import random
import socket
from contextlib import closing

LOWEST, HIGHEST = 18000, 30000


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


class FreePorts:
    """Hands out each port once."""

    def __init__(self) -> None:
        self._next = random.randrange(LOWEST, HIGHEST)

    def take(self) -> int:
        for _ in range(HIGHEST - LOWEST):
            port, self._next = self._next, LOWEST + (self._next + 1 - LOWEST) % (HIGHEST - LOWEST)
            if is_free(port):
                return port
        raise OSError(f"no free port between {LOWEST} and {HIGHEST}")
