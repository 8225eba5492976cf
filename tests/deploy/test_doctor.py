"""`pdd doctor` and `pdd drain` by themselves: what they look at, and what they say where nothing is there."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from infra.certs.make import make as make_credentials
from pdd.adapters.credentials import Credentials
from pdd.adapters.tls_look import look_at_certificate
from pdd.cli.doctor_looks import kv_ports
from pdd.cli.doctor_place import Place
from pdd.cli.drain import DrainError, drain
from pdd.cli.run_directory import RunDirectory
from pdd.core.ids import Peer, Role
from pdd.core.messages import Beat, EngineLoad, WorkerCard
from pdd.runtime.health import Health, Stage, worker_app
from tests.worker_page import serving

PDD = Path(sys.executable).with_name("pdd")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_credentials(folder, ["a.example.net", "192.0.2.7"], [])
    return folder


def doctor(run: Path, **told: str) -> tuple[int, dict[str, Any]]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PDD_")}
    done = subprocess.run(
        [PDD, "doctor", "--json", "--run-dir", run],
        env=plain | told,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, {one["what"]: one for one in json.loads(done.stdout)}


def nobody() -> int:
    """A port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_doctor_says_what_is_not_there_and_what_to_do(made: Path, tmp_path: Path) -> None:
    port = nobody()
    status, found = doctor(
        tmp_path,
        PDD_NATS_URL=f"nats://pdd:secret@127.0.0.1:{port}",
        PDD_REDIS_URL=f"redis://127.0.0.1:{port}/0",
        PDD_HTTP_PORT=str(port),
        PDD_CREDENTIALS_DIR=str(made / "site-a"),
        PDD_OTLP_ENDPOINT=f"https://127.0.0.1:{port}",
    )
    assert status == 1
    assert {what: one["state"] for what, one in found.items()} == {
        "versions": "ok",
        "certificates": "ok",
        "service": "fail",
        "broker": "fail",
        "redis": "fail",
        "router": "skip",
        "traces": "warn",
    }
    assert all(one["do"] for one in found.values() if one["state"] in ("fail", "warn"))
    assert "secret" not in json.dumps(found)


def test_wrong_settings_are_the_doctor_s_first_finding(tmp_path: Path) -> None:
    status, found = doctor(tmp_path, PDD_NATS_ULR="nats://x")
    assert status == 1
    assert "did you mean PDD_NATS_URL" in found["settings"]["found"]


def test_certificates_name_their_hosts_and_last_a_year(made: Path) -> None:
    certificate = look_at_certificate(made / "site-a")
    assert {"nats-a", "a.example.net", "192.0.2.7"} <= set(certificate.names)
    assert 365 < certificate.days_left < 400


@pytest.mark.parametrize("name", ["ca.pem", "key.pem"])
def test_a_certificate_of_another_authority_or_with_another_key_is_seen(made: Path, tmp_path: Path, name: str) -> None:
    mixed = tmp_path / "mixed"
    shutil.copytree(made / "site-a", mixed)
    make_credentials(tmp_path / "other", [], [])
    shutil.copy(tmp_path / "other" / "site-a" / name, mixed / name)
    with pytest.raises(OSError):  # ssl.SSLError is one
        look_at_certificate(mixed)


def test_making_credentials_again_keeps_keys_and_renewing_keeps_the_authority(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    shutil.copytree(made, folder)
    before = {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    make_credentials(folder, [], [])
    assert {file.relative_to(folder): file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    make_credentials(folder, [], [], renew=True)
    changed = {str(name) for name, data in before.items() if (folder / name).read_bytes() != data}
    assert changed == {f"site-{site}/{name}" for site in "ab" for name in ("cert.pem", "key.pem")}
    assert look_at_certificate(folder / "site-b").days_left > 365


def test_a_closed_kv_port_is_named_where_p_stands() -> None:
    place = Place(
        "a", "", Credentials(), None, router="127.0.0.1:1", otlp_endpoint=None, model_dir=None, http_port=None
    )
    with socket.create_server(("127.0.0.1", 0)) as server:
        ports = {"main-1": int(server.getsockname()[1]), "main-2": nobody()}
        beats = [
            (
                Peer("b", Role.MAIN, name, 1),
                Beat(1, WorkerCard("f", 1, 1, 1, f"tls://127.0.0.1:{port}"), (), EngineLoad()),
            )
            for name, port in ports.items()
        ]
        closed, fine = asyncio.run(kv_ports(place, beats)), asyncio.run(kv_ports(place, beats[:1]))
    assert (closed.state, fine.state) == ("fail", "ok")
    assert "main-2" in closed.found and "main-1" not in closed.found and "KV_ADDRESS" in closed.do


@pytest.mark.parametrize("idle", [True, False])
def test_drain_waits_until_nothing_runs_and_says_whether(tmp_path: Path, idle: bool) -> None:
    health = Health("prefill", Stage.READY, idle=lambda: idle)
    health.drain = lambda: setattr(health, "stage", Stage.DRAINING)
    with serving(worker_app(health, lambda: b"")) as address:
        console = Console(record=True, quiet=True)
        assert drain(RunDirectory(tmp_path), None, address, 0.5, console, as_json=False) is idle


def test_a_worker_s_default_name_says_where_it_is(tmp_path: Path) -> None:
    health = Health("prefill", Stage.READY, idle=lambda: True)
    health.drain = lambda: setattr(health, "stage", Stage.DRAINING)
    with serving(worker_app(health, lambda: b"")) as address:
        name = f"prefill-{address.replace(':', '-')}"
        assert drain(RunDirectory(tmp_path), name, None, 5, Console(quiet=True), as_json=True)


@pytest.mark.parametrize("worker", ["unheard-of", None])
def test_a_worker_that_cannot_be_found_is_asked_for_by_its_address(tmp_path: Path, worker: str | None) -> None:
    with pytest.raises(DrainError, match="--at"):
        drain(RunDirectory(tmp_path), worker, None, 0, Console(quiet=True), as_json=False)
