"""The line between the sites' containers: made slow and narrow, cut and joined, inside their network namespaces. Needs root.

Delay is made by `delay.py`, since not every kernel here has netem. A cut drops every packet and says nothing to anybody: what a dead
line does, unlike a reset.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from .budget import Unavailable
from .engine import DockerEngine

NETWORK = "pdd_wan"
QUEUE = 7
READY_S, STOP_S = 5, 5
DELAY = Path(__file__).with_name("delay.py")


class WanEnd:
    """One container's end of the line. `close` before the container ends: a process here holds its packets."""

    def __init__(self, engine: DockerEngine, container: str) -> None:
        told = f'{{{{.NetworkSettings.SandboxKey}}}} {{{{(index .NetworkSettings.Networks "{NETWORK}").IPAddress}}}}'
        namespace, address = engine.docker("inspect", "--format", told, container).split()
        self._inside = ("nsenter", f"--net={engine.place.path(namespace)}")
        self._interface = self._named(address)
        self._holder: subprocess.Popen[str] | None = None

    def shape(self, delay_ms: float, rate_mbit: float) -> None:
        """`delay_ms`: of what arrives here; `rate_mbit`: of what leaves. Raises Unavailable where the kernel cannot."""
        rate = ("tbf", "rate", f"{rate_mbit:g}mbit", "burst", "256kb", "latency", "60ms")
        rule = ("PREROUTING", "-i", self._interface, "-j", "NFQUEUE", "--queue-num", str(QUEUE), "--queue-bypass")
        try:
            self._run("tc", "qdisc", "replace", "dev", self._interface, "root", *rate)
            self._run("iptables", "-t", "mangle", "-A", *rule)
        except RuntimeError as error:
            raise Unavailable(f"the line cannot be shaped here: {error}") from error
        command = [*self._inside, sys.executable, str(DELAY), str(QUEUE), f"{delay_ms:g}"]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._holder.stdout is not None
        if self._holder.stdout.readline().strip() != "ready":
            raise Unavailable("packets cannot be held here: NFQUEUE is missing")

    def cut(self) -> None:
        self._run("iptables", "-I", "INPUT", "-i", self._interface, "-j", "DROP")
        self._run("iptables", "-I", "OUTPUT", "-o", self._interface, "-j", "DROP")

    def join(self) -> None:
        self._run("iptables", "-D", "INPUT", "-i", self._interface, "-j", "DROP")
        self._run("iptables", "-D", "OUTPUT", "-o", self._interface, "-j", "DROP")

    def close(self) -> None:
        if self._holder is not None:
            self._holder.communicate(timeout=STOP_S)  # it ends when its input does
            self._holder = None

    def _named(self, address: str) -> str:
        for line in self._run("ip", "-brief", "-4", "address").splitlines():
            name, _, *addresses = line.split()
            if any(one.partition("/")[0] == address for one in addresses):
                return name.partition("@")[0]
        raise LookupError(f"no interface has {address}")

    def _run(self, *words: str) -> str:
        done = subprocess.run([*self._inside, *words], capture_output=True, text=True, timeout=READY_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout


def close_all(ends: Iterable[WanEnd]) -> None:
    for end in ends:
        end.close()
