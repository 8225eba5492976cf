"""Ports for one deployment on this machine: free when handed out, and all different."""

import socket

from ..adapters.local_servers import HOST, free_port


class FreePorts:
    def __init__(self) -> None:
        self._taken: set[int] = set()

    def take(self) -> int:
        while (port := free_port()) in self._taken:
            continue
        self._taken.add(port)
        return port


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
