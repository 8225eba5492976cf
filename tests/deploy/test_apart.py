"""A place apart: it ends with us, however we end, and this machine does not see that it was there. Needs root and slirp4netns."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.ci.apart import apart
from infra.ci.budget import Budget, Unavailable

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 20.0
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
STARTS_AND_WAITS = """
import os, sys, time
from pathlib import Path
from infra.ci.apart import apart
with apart(["sleep", "600"], dict(os.environ), open(os.devnull, "wb"), Path(sys.argv[1])) as place:
    print(place.pid, flush=True)
    time.sleep(600)
"""

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("slirp4netns", path=PATH) is None, reason="needs root and slirp4netns"
)


def until(look: Callable[[], bool], what: str) -> None:
    limit = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < limit, f"waited for {what}"
        time.sleep(0.05)


def seen_outside() -> tuple[str, str]:
    """Interfaces and mounts."""
    return "\n".join(sorted(name for _, name in socket.if_nameindex())), Path("/proc/self/mounts").read_text()


def in_namespace(name: str) -> list[str]:
    """Processes of this machine in a network namespace."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found += [process.name] if os.readlink(process / "ns/net") == name else []
        except OSError:
            continue
    return found


@needs_root
def test_what_runs_in_a_place_apart_ends_with_it_and_leaves_nothing(tmp_path: Path) -> None:
    before, outside = seen_outside(), os.readlink("/proc/thread-self/ns/net")
    with (tmp_path / "log").open("wb") as log, apart(["sleep", "600"], dict(os.environ), log, tmp_path) as place:
        inside = os.readlink("/proc/thread-self/ns/net")
        assert inside != outside and in_namespace(inside)
        assert "tap0" in {name for _, name in socket.if_nameindex()}
        assert Path(f"/proc/{place.pid}/comm").exists()
    assert os.readlink("/proc/thread-self/ns/net") == outside
    assert in_namespace(inside) == []
    assert seen_outside() == before


@needs_root
def test_a_place_apart_ends_when_who_made_it_is_killed(tmp_path: Path) -> None:
    before = seen_outside()
    command = [sys.executable, "-c", STARTS_AND_WAITS, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as maker:
        assert maker.stdout is not None
        place = int(maker.stdout.readline())
        inside = os.readlink(f"/proc/{place}/ns/net")
        maker.send_signal(signal.SIGKILL)
    until(lambda: not in_namespace(inside), "every process there to end")
    assert not Path(f"/proc/{place}").exists()
    assert seen_outside() == before


def test_a_step_is_ended_with_all_that_it_started_when_its_time_is_up(tmp_path: Path) -> None:
    started = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {started}; wait"
    with pytest.raises(Unavailable, match="took more than"):
        Budget(60).run(["sh", "-c", script], 0.5)
    pid = int(started.read_text())
    until(lambda: not Path(f"/proc/{pid}").exists(), "its child to end")


def test_what_fails_says_why_and_a_used_up_budget_begins_nothing(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no such thing"):
        Budget(60).run(["sh", "-c", "echo no such thing >&2; exit 3"], 10)
    with pytest.raises(Unavailable, match="no-such-program-here"):
        Budget(60).run(["no-such-program-here"], 10)
    with pytest.raises(Unavailable, match="took more than 0 s"):
        Budget(0).run(["touch", str(tmp_path / "began")], 10)
    assert not (tmp_path / "began").exists()
