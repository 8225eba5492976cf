"""One service by itself, as an operator starts it: wrong settings, nobody there to talk to, and its end."""

import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from pdd.cli.fleet import ROOT
from pdd.cli.ports import FreePorts
from pdd.runtime.settings import child_environment
from tests.e2e.client import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]

SERVICES = ("router", "prefill", "relay_decode", "main_decode", "prefix_index")


def command(service: str) -> list[str]:
    return [sys.executable, "-m", f"services.{service}"]


@pytest.mark.parametrize("service", SERVICES)
def test_wrong_settings_are_all_named_and_nothing_starts(service: str) -> None:
    env = child_environment({"PDD_HTTP_PORT": "many", "PDD_NATSURL": "nats://nowhere", "PDD_MODEL_DIR": "/nowhere"})
    run = subprocess.run(command(service), env=env, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False)
    assert run.returncode == 2
    assert "PDD_HTTP_PORT" in run.stderr
    assert "did you mean PDD_NATS_URL?" in run.stderr
    assert "Traceback" not in run.stderr


def test_without_broker_and_redis_it_lives_is_not_ready_and_ends_when_asked(tmp_path: Path) -> None:
    ports = FreePorts()
    http, nats, redis = ports.take(), ports.take(), ports.take()
    told = {
        "PDD_HTTP_PORT": f"{http}",
        "PDD_NATS_URL": f"nats://127.0.0.1:{nats}",
        "PDD_REDIS_URL": f"redis://127.0.0.1:{redis}/0",
    }
    log = tmp_path / "log"
    with (
        log.open("wb") as sink,
        subprocess.Popen(command("prefix_index"), env=child_environment(told), cwd=ROOT, stderr=sink) as process,
    ):
        until(lambda: says(http) == (503, "disconnected"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert "stopped" in log.read_text()


def says(port: int) -> tuple[int, str] | None:
    try:
        answer = httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False)
    except httpx.TransportError:
        return None
    return answer.status_code, answer.json()["status"]
