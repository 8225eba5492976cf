"""Processes of a deployment: started apart from the terminal, recorded by pid and start time, ended by that record only.

A pid that was given to another process since is never touched: its start time differs.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

LOOK_S = 0.05
KILL_WAIT_S = 5.0


class ProcessRecord(msgspec.Struct, frozen=True):
    """One started process. `ports` are what it listens on, by name."""

    name: str
    site: str
    pid: int
    started: str  # as the operating system tells it
    log: str
    ports: dict[str, int] = {}


def spawn(
    name: str,
    command: Sequence[str],
    *,
    site: str,
    env: dict[str, str],
    cwd: Path,
    log: Path,
    ports: dict[str, int],
) -> tuple[ProcessRecord, subprocess.Popen[bytes]]:
    """Start in a session of its own, so that Ctrl-C reaches only who asked for the deployment."""
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
        )
    started = start_time(process.pid) or ""
    return ProcessRecord(name, site, process.pid, started, str(log), ports), process


def start_time(pid: int) -> str | None:
    """When the process began, in the system's own unit; None when there is none, or only its remains."""
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").exists():
        return _start_time_by_ps(pid)
    try:
        after_name = stat.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, ticks = after_name[0], after_name[19]
    return None if state in "ZX" else ticks


def _start_time_by_ps(pid: int) -> str | None:
    answer = subprocess.run(["ps", "-o", "state=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = answer.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()


def alive(record: ProcessRecord) -> bool:
    return start_time(record.pid) == record.started


def end(records: Sequence[ProcessRecord], grace_s: float, reap: Callable[[], None] = lambda: None) -> list[str]:
    """SIGTERM to all at once, SIGKILL to what is left after `grace_s`. Returns the names of those that were killed.

    `reap` is called while waiting: the parent of these processes collects their remains there.
    """
    _signal(records, signal.SIGTERM)
    left = _wait(records, grace_s, reap)
    _signal(left, signal.SIGKILL)
    _wait(left, KILL_WAIT_S, reap)
    return [record.name for record in left]


def _signal(records: Sequence[ProcessRecord], number: signal.Signals) -> None:
    for record in records:
        if alive(record):
            try:
                os.kill(record.pid, number)
            except ProcessLookupError:
                continue


def _wait(records: Sequence[ProcessRecord], seconds: float, reap: Callable[[], None]) -> list[ProcessRecord]:
    until = time.monotonic() + seconds
    while True:
        left = [record for record in records if alive(record)]
        reap()  # last, so that whoever is not among the left has been collected
        if not left or time.monotonic() >= until:
            return left
        time.sleep(LOOK_S)


def last_lines(log: str, count: int) -> list[str]:
    try:
        return Path(log).read_text(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []
