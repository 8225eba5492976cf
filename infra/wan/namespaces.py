"""A WAN of real kernel TCP on one machine, for root on Linux: two sites and the line between them, each a network namespace.

Rate and queue by tbf, delay by `infra.wan.delay`, loss by iptables. Everything is undone at the end, whatever happens inside.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
BURST_BYTES = 64 << 10
READY_S = 10.0
QUEUE = 7
_numbers = count(os.getpid() % 10_000 * 100)


class NoNamespaces(Exception):
    """This machine, or who we are on it, cannot make such a WAN; the message says why."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Each way. `queue_ms`: the line's own buffer, at its rate. `loss`: the chance of each packet from a to b."""

    rate_mbit: float
    delay_ms: float
    queue_ms: float = 50.0
    loss: float = 0.0

    def __str__(self) -> str:
        loss = f", {self.loss:.3%} loss" if self.loss else ""
        return f"{self.rate_mbit:g} Mbit/s, {2 * self.delay_ms:g} ms round trip{loss}"


def missing() -> str | None:
    """What keeps this machine from it; None: nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    absent = [name for name in ("ip", "tc", "iptables") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


class Namespaces:
    """Use as a context. Site a is `10.77.1.2`, site b `10.77.2.2`."""

    a, b = "10.77.1.2", "10.77.2.2"

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        number = next(_numbers)
        self._names = {site: f"pdd{number}{site}" for site in ("a", "w", "b")}
        self._delay: subprocess.Popen[str] | None = None

    def command(self, site: str, words: Sequence[str]) -> list[str]:
        """`words`, run at that site ("a", "b") or on the line itself ("w")."""
        return ["ip", "netns", "exec", self._names[site], *words]

    def __enter__(self) -> "Namespaces":
        if reason := missing():
            raise NoNamespaces(reason)
        try:
            self._build()
            self._shape()
        except BaseException as error:
            self._remove()
            if isinstance(error, subprocess.CalledProcessError | TimeoutError):
                raise NoNamespaces(_told(error)) from error
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._remove()

    # -- building -----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        for name in self._names.values():
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        _run(*self.command("w", ["sysctl", "-qw", "net.ipv4.ip_forward=1"]))
        for number, site in ((1, "a"), (2, "b")):
            there, line = self._names[site], self._names["w"]
            _run(
                "ip",
                "link",
                "add",
                f"{site}0",
                "netns",
                there,
                "type",
                "veth",
                "peer",
                "name",
                f"w{site}",
                "netns",
                line,
            )
            for name, device, host in ((there, f"{site}0", 2), (line, f"w{site}", 1)):
                _run("ip", "-n", name, "addr", "add", f"10.77.{number}.{host}/24", "dev", device)
                _run("ip", "-n", name, "link", "set", device, "up")
            _run("ip", "-n", there, "route", "add", "default", "via", f"10.77.{number}.1")

    def _shape(self) -> None:
        shape = self.shape
        limit = max(int(shape.rate_mbit * 125 * shape.queue_ms), 2 * BURST_BYTES)
        for device in ("wa", "wb"):
            words = (
                f"tc qdisc replace dev {device} root tbf rate {shape.rate_mbit}mbit burst {BURST_BYTES} limit {limit}"
            )
            _run(*self.command("w", words.split()))
        if shape.loss:
            for site in ("a", "b"):  # so that a packet is a packet, not a train of them
                _run("ip", "-n", self._names[site], "link", "set", "dev", f"{site}0", "gso_max_segs", "1")
            drop = f"iptables -t mangle -A FORWARD -i wa -m statistic --mode random --probability {shape.loss} -j DROP"
            _run(*self.command("w", drop.split()))
        hold = f"iptables -t mangle -A FORWARD -j NFQUEUE --queue-num {QUEUE} --queue-bypass"
        _run(*self.command("w", hold.split()))
        self._start_delay()

    def _start_delay(self) -> None:
        words = [sys.executable, "-m", "infra.wan.delay", "--queue", str(QUEUE), "--delay-ms", str(self.shape.delay_ms)]
        self._delay = subprocess.Popen(
            self.command("w", words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
        )
        assert self._delay.stdout is not None
        if (said := self._delay.stdout.readline().strip()) != "ready":
            raise NoNamespaces(said or "the delay did not start")

    def _remove(self) -> None:
        if self._delay:
            self._delay.terminate()
            try:
                self._delay.communicate(timeout=READY_S)
            except subprocess.TimeoutExpired:
                self._delay.kill()
                self._delay.communicate()
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    # -- while it runs ------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Every packet is lost from now on, until `join`."""
        _run(*self.command("w", ["iptables", "-t", "mangle", "-I", "FORWARD", "-j", "DROP"]))

    def join(self) -> None:
        _run(*self.command("w", ["iptables", "-t", "mangle", "-D", "FORWARD", "-j", "DROP"]))


def wait_until_listening(network: Namespaces, site: str, port: int) -> None:
    """Raises TimeoutError."""
    limit = time.monotonic() + READY_S
    while time.monotonic() < limit:
        seen = subprocess.run(network.command(site, ["ss", "-Hltn"]), capture_output=True, text=True, check=False)
        if f":{port} " in seen.stdout:
            return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens on port {port} at site {site}")


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def _told(error: BaseException) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{' '.join(error.cmd[:6])} ...: {error.stderr.strip()}"
    return str(error)
