"""The compose file by itself: it follows the specification, keeps the sites apart, and says no more than .env.example explains."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.ci.machine import compose_plugin

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "docker-compose.yml"
OURS = ("router", "index", "prefill", "relay", "main")
VARIABLE = re.compile(r"\$\{([A-Z_]+)")
EXPLAINED = re.compile(r"^#?([A-Z_]+)=", re.MULTILINE)
NOT_SET_BY_USERS = {"TAG"}
SHOWN_BY_EXAMPLE = {"KV_PUBLISH", "MODELS", "OTLP_ENDPOINT_B"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def tool(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def passes(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_compose_file_follows_the_specification() -> None:
    passes(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE))


def compose(*words: str, **told: str) -> str:
    """Compose by itself, without an engine, as on a host with this environment and no .env."""
    plugin = compose_plugin()
    if plugin is None:
        pytest.skip("Compose's plugin is not installed")
    told = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **told}
    command = [plugin, "--env-file", os.devnull, *words]
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compose_itself_takes_the_file_for_each_site_and_for_both() -> None:
    for profiles in ("site-a", "site-b", "site-a,site-b"):
        assert compose("config", "--quiet", COMPOSE_PROFILES=profiles) == ""
    assert compose("-f", "docker-compose.yml", "-f", "infra/docker/gpu.yml", "--profile", "*", "config", "-q") == ""


def test_a_setting_without_a_name_of_its_own_comes_from_pdd_env(tmp_path: Path) -> None:
    (tmp_path / "pdd.env").write_text("PDD_API_KEYS=one,two\nPDD_SITE=nowhere\n")
    told = yaml.safe_load(
        compose("-f", str(COMPOSE), "--project-directory", str(tmp_path), "--profile", "site-a", "config")
    )["services"]
    assert told["router"]["environment"]["PDD_API_KEYS"] == "one,two"
    assert told["router"]["environment"]["PDD_SITE"] == "a", "what the compose file says goes first"


def test_site_b_needs_site_a_s_address_and_its_own_credentials_alone() -> None:
    told = yaml.safe_load(compose("--profile", "site-b", "config", SITE_A_HOST="a.example.net"))["services"]
    assert set(told) == {"model", "nats-b", "main", "prometheus-b"}
    assert told["nats-b"]["environment"]["NATS_HUB"] == "tls://a.example.net:7422"
    assert told["main"]["environment"]["PDD_OTLP_ENDPOINT"] == "https://a.example.net:4319"
    mounted = {volume["source"] for service in told.values() for volume in service["volumes"]}
    assert {source for source in mounted if "/certs/" in source} == {str(ROOT / "certs" / "site-b")}


def test_the_dockerfiles_have_nothing_that_hadolint_minds() -> None:
    passes(tool("hadolint"), "infra/docker/Dockerfile", "infra/ci/stand-ins/Dockerfile")


def test_every_setting_is_explained_in_env_example_and_every_explained_one_is_used() -> None:
    used = set(VARIABLE.findall(COMPOSE.read_text())) - NOT_SET_BY_USERS
    explained = set(EXPLAINED.findall((ROOT / ".env.example").read_text())) - {"COMPOSE_PROFILES"}
    assert used == explained


def test_defaults_in_env_example_are_those_of_the_compose_file() -> None:
    compose, wrong = COMPOSE.read_text(), []
    for line in (ROOT / ".env.example").read_text().splitlines():
        match = re.match(r"#([A-Z_]+)=(\S+)", line)
        default = re.search(rf"\${{{match[1]}:-([^}}]*)}}", compose) if match else None
        shown = match and default and default[1] and match[1] not in SHOWN_BY_EXAMPLE
        if shown and default[1] != match[2]:
            wrong.append(f"{match[1]}: {match[2]} there, {default[1]} in the compose file")
    assert not wrong


def test_official_images_are_pinned_to_a_version(services: dict[str, Any]) -> None:
    pinned = re.compile(r".+:v?\d+\.\d+\.\d+(-alpine)?")
    loose = [service["image"] for service in services.values() if not service["image"].startswith("pdd-")]
    assert [image for image in loose if not pinned.fullmatch(image)] == []


@pytest.mark.parametrize("name", OURS)
def test_our_containers_are_locked_down(services: dict[str, Any], name: str) -> None:
    service = services[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["mem_limit"] and service["pids_limit"] and service["restart"] == "unless-stopped"


def test_our_containers_are_given_longer_than_a_drain_to_stop(services: dict[str, Any]) -> None:
    def default(text: str) -> float:
        match = re.fullmatch(r"\$\{[A-Z_]+:-(\d+)s?\}", str(text))
        assert match, text
        return float(match[1])

    for name in OURS:
        drain = default(services[name]["environment"]["PDD_DRAIN_S"]) if "environment" in services[name] else 0
        assert default(services[name]["stop_grace_period"]) > drain + 10


def test_redis_stands_in_site_a_alone_and_is_not_published(services: dict[str, Any]) -> None:
    assert services["redis"]["networks"] == ["site-a"]
    assert "ports" not in services["redis"]


def test_only_what_crosses_the_line_stands_in_both(services: dict[str, Any]) -> None:
    across = {name for name, service in services.items() if "wan" in service.get("networks", [])}
    assert across == {"nats-a", "nats-b", "prefill", "main", "jaeger", "grafana", "prometheus-b"}
    for name, service in services.items():
        networks = set(service.get("networks", []))
        assert not {"site-a", "site-b"} <= networks, f"{name} would be a way around the line"


def test_a_port_is_published_on_this_host_alone_unless_told_otherwise(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert [port for port in published if not re.match(r"\$\{[A-Z_]+:-127\.0\.0\.1", port)] == []
