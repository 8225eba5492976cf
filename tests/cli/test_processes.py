"""Processes by record: what was started is ended, and nothing else."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from pdd.cli.processes import ProcessRecord, alive, end, last_lines, spawn, start_time
from pdd.cli.run_directory import Deployed, RunDirectory

WAITS = "import signal; print('up', flush=True); signal.pause()"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"


@pytest.fixture
def started(tmp_path: Path):
    children: list[subprocess.Popen[bytes]] = []

    def start(code: str, name: str = "child") -> ProcessRecord:
        log = tmp_path / f"{name}.log"
        record, child = spawn(name, (sys.executable, "-c", code), site="a", env={}, cwd=tmp_path, log=log, ports={})
        children.append(child)
        return record

    start.reap = lambda: [child.poll() for child in children]  # type: ignore[attr-defined]
    yield start
    for child in children:
        child.kill()
        child.wait()


def test_a_started_process_is_alive_until_it_is_ended(started) -> None:
    record = started(WAITS)
    assert alive(record)
    assert end([record], grace_s=5, reap=started.reap) == []
    assert not alive(record)


def test_one_that_does_not_listen_is_killed_after_its_grace_and_named(started, tmp_path: Path) -> None:
    record = started(DEAF, "deaf")
    while not last_lines(record.log, 1):  # it must have closed its ears first
        assert alive(record)
    assert end([record], grace_s=0.2, reap=started.reap) == ["deaf"]
    assert not alive(record)


def test_a_pid_that_belongs_to_another_process_now_is_left_alone(started) -> None:
    record = started(WAITS)
    former = msgspec.structs.replace(record, started="1")
    assert not alive(former)
    assert end([former], grace_s=0.1) == []
    assert alive(record)


def test_remains_that_nobody_collected_are_not_alive(started) -> None:
    record = started("pass")
    while start_time(record.pid) is not None:
        pass
    assert not alive(record)


def test_a_run_directory_tells_later_commands_what_runs(started, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert run.read() is None
    run.prepare()
    record = started(WAITS)
    run.write(Deployed((record,), router="127.0.0.1:8000"))
    again = RunDirectory(tmp_path / "run")
    assert again.running() == [record]
    again.forget()
    assert again.read() is None
