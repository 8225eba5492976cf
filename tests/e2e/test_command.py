"""`pdd up`, `status`, `line`, `down`: the command ends exactly what it started, however it is asked to."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import DefaultHttpxClient, OpenAI

from pdd.cli.ports import FreePorts
from pdd.cli.processes import alive
from pdd.cli.run_directory import RunDirectory
from tests.e2e.client import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

PDD = (sys.executable, "-m", "pdd.cli")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """A run directory of which nothing is left running, whatever the test did."""
    directory = RunDirectory(tmp_path / "run")
    yield directory
    pdd("down", directory)


def pdd(command: str, run: RunDirectory, *options: str) -> subprocess.CompletedProcess[str]:
    told = [*PDD, command, "--run-dir", str(run.path), *options]
    return subprocess.run(told, capture_output=True, text=True, timeout=90, check=False, cwd=run.path.parent)


def up_options(model: Path, port: int) -> tuple[str, ...]:
    return ("--model", str(model), "--engine", "scripted", "--port", str(port))


def test_up_serves_the_unchanged_openai_client_and_down_leaves_nothing(run: RunDirectory, model: Path) -> None:
    port = FreePorts().take()
    started = pdd("up", run, "--detach", *up_options(model, port))
    assert started.returncode == 0, started.stdout + started.stderr
    assert f"127.0.0.1:{port}/v1" in started.stdout

    with OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="any", http_client=DefaultHttpxClient(trust_env=False)
    ) as client:
        stream = client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": "Hello"}],
            max_completion_tokens=8,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 8

    again = pdd("up", run, "--detach", *up_options(model, port))
    assert again.returncode == 1
    assert "already running" in again.stdout

    status = json.loads(pdd("status", run, "--json").stdout)
    assert status["whole"]
    assert {worker["role"] for worker in status["fleet"]["workers"] if worker["alive"]} == {
        *("prefill", "relay_decode", "main_decode", "prefix_index"),
    }
    assert "3 Mbit/s each way" in pdd("line", run, "--rate-mbit", "3").stdout
    assert json.loads(pdd("status", run, "--json").stdout)["line"]["rate_mbit"] == 3

    processes = run.running()
    assert len(processes) == 9
    assert pdd("down", run).stdout.strip() == "ended 9 processes"
    assert not [record.name for record in processes if alive(record)]
    assert run.read() is None
    assert pdd("down", run).stdout.strip() == "nothing was running"
    assert pdd("status", run).returncode == 1
    for record in processes:
        for taken in record.ports.values():
            socket.create_server(("127.0.0.1", taken)).close()  # raises where somebody still listens


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "terminated"])
def test_up_in_the_foreground_ends_everything_when_asked(run: RunDirectory, model: Path, number: int) -> None:
    port = FreePorts().take()
    command = [*PDD, "up", "--run-dir", str(run.path), *up_options(model, port)]
    # Whoever runs the tests in the background ignores SIGINT, and children inherit that: here it means Ctrl-C again.
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    told: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "cwd": run.path.parent, "preexec_fn": heard}
    with subprocess.Popen(command, **told) as process:
        assert process.stdout is not None
        until(lambda: "ready" in process.stdout.readline(), seconds=60)
        assert httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False).status_code == 200
        processes = run.running()
        os.kill(process.pid, number)
        assert process.wait(30) == 0
    assert len(processes) == 9
    assert not [record.name for record in processes if alive(record)]
    assert run.read() is None


def test_a_part_that_cannot_start_is_named_with_its_reason_and_nothing_is_left(
    run: RunDirectory, tmp_path: Path
) -> None:
    no_model = tmp_path / "no-model"
    no_model.mkdir()
    started = pdd("up", run, "--detach", *up_options(no_model, FreePorts().take()))
    assert started.returncode == 1
    assert "ended with status 1" in started.stdout
    assert "config.json" in started.stdout or "safetensors" in started.stdout
    assert run.running() == []


def test_a_taken_port_is_named_with_what_to_do(run: RunDirectory, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started = pdd("up", run, "--detach", *up_options(model, port))
    assert started.returncode == 1
    assert f"port {port} is taken" in started.stdout
    assert "--port" in started.stdout
