"""Where a measurement takes place: loopback, or a WAN between two processes: in network namespaces as root, else through the proxy.

Whatever is compared is compared in the same place in the same run.
"""

import json
import shutil
import socket
import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from infra.wan.namespaces import Namespaces, Shape, missing, wait_until_listening

from .pair import ROOT, Pair, here

IPERF_PORT = 5201


class Place(AbstractContextManager["Place"], Protocol):
    name: str

    def pair(self, **options: Any) -> Pair:
        """A sender and a receiver joined here; options as bench.line.end takes them."""

    def iperf_bits_per_s(self, streams: int, seconds: float, congestion: str) -> float | None:
        """None where there is no iperf3."""


def place(shape: Shape | None) -> Place:
    """None: no line at all, both on this machine."""
    if shape is None:
        return Loopback()
    return Proxied(shape) if missing() else Shaped(shape)


class Loopback:
    name = "loopback"

    def __enter__(self) -> "Loopback":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return None

    def pair(self, **options: Any) -> Pair:
        return Pair(**options)

    def iperf_bits_per_s(self, streams: int, seconds: float, congestion: str) -> float | None:
        if not shutil.which("iperf3"):
            return None
        server = subprocess.Popen(["iperf3", "-s", "-1", "-p", str(IPERF_PORT)], stdout=subprocess.DEVNULL)
        _wait_for_port(IPERF_PORT)
        return _iperf(here("a", _client("127.0.0.1", IPERF_PORT, streams, seconds, congestion)), server)


class Shaped:
    """Real kernel TCP between two network namespaces."""

    def __init__(self, shape: Shape) -> None:
        self.name = f"{shape} (network namespaces)"
        self._network = Namespaces(shape)

    def __enter__(self) -> "Shaped":
        self._network.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._network.__exit__(kind, error, at)

    def pair(self, **options: Any) -> Pair:
        return Pair(self._network.command, self._network.b, **options)

    def iperf_bits_per_s(self, streams: int, seconds: float, congestion: str) -> float | None:
        if not shutil.which("iperf3"):
            return None
        server = subprocess.Popen(self._network.command("b", ["iperf3", "-s", "-1"]), stdout=subprocess.DEVNULL)
        wait_until_listening(self._network, "b", IPERF_PORT)
        client = _client(self._network.b, IPERF_PORT, streams, seconds, congestion)
        return _iperf(self._network.command("a", client), server)


class Proxied:
    """Two local TCP connections with `infra.wan.proxy` between them: rate and delay, and no loss."""

    def __init__(self, shape: Shape) -> None:
        self.name = f"{shape} (user-space proxy)"
        self._shape, self._stack = shape, ExitStack()
        self._kv_port, self._iperf_port, self._listen = _free_port(), _free_port(), _free_port()

    def __enter__(self) -> "Proxied":
        maps = [
            f"127.0.0.1:{self._kv_port}=127.0.0.1:{self._listen}",
            f"127.0.0.1:{self._iperf_port}=127.0.0.1:{IPERF_PORT}",
        ]
        process = subprocess.Popen(
            [
                sys.executable, "-m", "infra.wan.proxy", "--rate-mbit", str(self._shape.rate_mbit), "--delay-ms",
                str(self._shape.delay_ms), "--control", f"127.0.0.1:{_free_port()}", *(w for m in maps for w in ("--map", m)),
            ],
            cwd=ROOT, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        _wait_for_port(self._kv_port)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def pair(self, **options: Any) -> Pair:
        scheme = "tls://" if options.get("tls") else ""
        return Pair(address=f"{scheme}127.0.0.1:{self._kv_port}", port=self._listen, **options)

    def iperf_bits_per_s(self, streams: int, seconds: float, congestion: str) -> float | None:
        if not shutil.which("iperf3"):
            return None
        server = subprocess.Popen(["iperf3", "-s", "-1", "-p", str(IPERF_PORT)], stdout=subprocess.DEVNULL)
        _wait_for_port(IPERF_PORT)
        return _iperf(_client("127.0.0.1", self._iperf_port, streams, seconds, congestion), server)


def _client(host: str, port: int, streams: int, seconds: float, congestion: str) -> list[str]:
    words = f"iperf3 -J -c {host} -p {port} -P {streams} -t {seconds:g} -O 1"
    return [*words.split(), *(["-C", congestion] if congestion else [])]


def _iperf(client: list[str], server: "subprocess.Popen[bytes]") -> float | None:
    try:
        said = subprocess.run(client, capture_output=True, text=True, timeout=120, check=False)
        return float(json.loads(said.stdout)["end"]["sum_received"]["bits_per_second"])
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    finally:
        server.terminate()
        server.wait()


def _wait_for_port(port: int, seconds: float = 10.0) -> None:
    """By looking, not by connecting: iperf3 would take that for its client."""
    limit, wanted = time.monotonic() + seconds, f":{port:04X} "
    while time.monotonic() < limit:
        tables = [Path(f"/proc/net/{name}") for name in ("tcp", "tcp6")]
        if any(
            wanted in line and " 0A " in line for one in tables if one.exists() for line in one.read_text().splitlines()
        ):
            return
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
