"""A place apart for one run: processes, mounts and network of its own, with a way out through user space. Needs root.

Nothing is changed outside: no bridge, no packet filter, no mount. All of it ends with its first process (keeper.py), and that one
with us, however we end. Programs that run outside hold no end of it either: each ends when a pipe of ours does.
"""

import contextlib
import ctypes
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from .budget import Unavailable

KEEPER = Path(__file__).with_name("keeper.py")
NAMESERVER = "10.0.2.3"  # slirp4netns' own
READY_S, STOP_S, LOOK_S = 10.0, 30.0, 0.05
NETWORK_NAMESPACE = 0x40000000  # CLONE_NEWNET of linux/sched.h


class Apart:
    """`pid`: its first process, as seen from outside."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def path(self, inside: str) -> Path:
        """A file as the place's own mounts show it, opened from outside."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def kill(self, pid: int) -> None:
        """`pid` as the place counts."""
        command = ["nsenter", "--target", str(self.pid), "--pid", "kill", "-KILL", str(pid)]
        subprocess.run(command, timeout=READY_S, check=True)


@contextlib.contextmanager
def apart(
    command: Sequence[str], environment: dict[str, str], log: IO[bytes], scratch: Path, *, kept_open: Sequence[int] = ()
) -> Iterator[Apart]:
    """Runs `command` there; inside, this thread and what it starts are in its network. Raises Unavailable where that cannot be.

    `kept_open`: descriptors that stay open for as long as the place is.
    """
    resolver = scratch / "resolv.conf"
    resolver.write_text(f"nameserver {NAMESERVER}\n")
    bind = 'mount --bind "$0" /etc/resolv.conf && exec "$@"'
    keeper = subprocess.Popen(
        [
            *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
            *("sh", "-c", bind, str(resolver), sys.executable, "-I", "-S", str(KEEPER), *command),
        ],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        pass_fds=kept_open,
        start_new_session=True,
    )
    try:
        place = Apart(_first_process(keeper))
        with _way_out(place, log), _joined(place):
            yield place
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        try:
            keeper.wait(STOP_S)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait(READY_S)


def _first_process(unshare: "subprocess.Popen[bytes]") -> int:
    """The kernel's word for `unshare`'s child; its namespaces are made by then."""
    until = time.monotonic() + READY_S
    while unshare.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split()
            if children:
                return int(children[0])
        time.sleep(LOOK_S)
    raise Unavailable("this kernel gives no namespaces of our own (unshare --mount --net --pid)")


@contextlib.contextmanager
def _way_out(place: Apart, log: IO[bytes]) -> Iterator[None]:
    """Connections made inside leave as connections of a process outside; this machine's own addresses stay out of reach."""
    ready, ready_inside = os.pipe()
    end_inside, end = os.pipe()
    told = ("--ready-fd", str(ready_inside), "--exit-fd", str(end_inside))
    command = ["slirp4netns", "--configure", "--mtu=1500", "--disable-host-loopback", *told, str(place.pid), "tap0"]
    with open(ready, "rb") as answers, open(ready_inside, "wb"), open(end_inside, "rb"), open(end, "wb") as held:
        slirp = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(ready_inside, end_inside),
            start_new_session=True,
        )
        try:
            if not select.select([answers], [], [], READY_S)[0]:
                raise Unavailable("no way out of a network of our own: slirp4netns does not start here")
            yield
        finally:
            held.close()
            slirp.wait(READY_S)


@contextlib.contextmanager
def _joined(place: Apart) -> Iterator[None]:
    with open("/proc/thread-self/ns/net", "rb") as outside, open(f"/proc/{place.pid}/ns/net", "rb") as inside:
        _enter(inside)
        try:
            yield
        finally:
            _enter(outside)


def _enter(namespace: IO[bytes]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace.fileno(), NETWORK_NAMESPACE):
        raise Unavailable(f"a network of our own cannot be entered: {os.strerror(ctypes.get_errno())}")
