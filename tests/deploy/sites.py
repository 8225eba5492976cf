"""Both sites in containers, as a user runs them: the unchanged compose file, an .env, `make certs`; and what a fault needs."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx

from infra.certs.make import make as make_credentials
from infra.ci.engine import DockerEngine
from infra.ci.wan import WanEnd, close_all

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
PORTS = {
    "API_PORT": 18080,
    "JAEGER_PORT": 18086,
    "PROMETHEUS_PORT": 18090,
    "PROMETHEUS_B_PORT": 18091,
    "GRAFANA_PORT": 18030,
}
PROMETHEUS = {"a": "PROMETHEUS_PORT", "b": "PROMETHEUS_B_PORT"}
LINE_ENDS = ("prefill", "nats-a", "main", "nats-b")  # who crosses the line in a request
CUT_AT = ("main", "nats-b")
WORKERS = ("prefill", "relay_decode", "main_decode")
DELAY_MS, RATE_MBIT = 25.0, 60.0
UP_S, LOOK_S = 120, 0.2
DRAIN_S = 20

T = TypeVar("T")


class Sites:
    def __init__(self, engine: DockerEngine, folder: Path, until: float) -> None:
        """`until`: by the monotonic clock, when no further test is begun."""
        self.engine = engine
        self.until = until
        self.credentials = folder / "certs"
        self._env = folder / ".env"
        make_credentials(self.credentials, [], [])
        self.tell()

    def tell(self, **settings: str) -> None:
        """Write the .env: .env.example as it stands, and behind it what a test run has otherwise."""
        ours = {
            "CREDENTIALS": str(self.credentials),
            "ENGINE": "scripted",
            "REPORT": "true",
            "TEST_HOOKS": "true",
            "DRAIN_S": str(DRAIN_S),
            **{name: str(port) for name, port in PORTS.items()},
            **settings,
        }
        told = (ROOT / ".env.example").read_text()
        self._env.write_text(told + "".join(f"{name}={value}\n" for name, value in ours.items()))

    def compose(self, *words: str, timeout_s: float = 60) -> str:
        return self.engine.docker("compose", "--env-file", str(self._env), *words, cwd=ROOT, timeout_s=timeout_s)

    def up(self, *words: str) -> None:
        told = ("up", "--detach", "--pull", "never", "--no-build", "--wait", "--wait-timeout", str(UP_S))
        self.compose(*told, *words, timeout_s=UP_S + 60)

    def containers(self, service: str) -> list[str]:
        return self.compose("ps", "--all", "--quiet", service).split()

    def state(self, container: str) -> dict[str, Any]:
        return dict(json.loads(self.engine.docker("inspect", "--format", "{{json .State}}", container)))

    def logs(self, service: str) -> str:
        return self.compose("logs", "--no-color", "--tail", "200", service)

    # -- the API ------------------------------------------------------------------------------------------------------

    @property
    def api(self) -> str:
        return f"http://{HOST}:{PORTS['API_PORT']}/v1"

    @property
    def prometheus(self) -> dict[str, str]:
        """By the dashboard's names of its data sources."""
        return {f"pdd-{site}": f"http://{HOST}:{PORTS[port]}" for site, port in PROMETHEUS.items()}

    def workers(self) -> dict[str, dict[str, Any]]:
        """Those that the router hears, by name."""
        workers = self.get("API_PORT", "/status")["workers"]
        return {worker["name"]: worker for worker in workers if worker["alive"]}

    def get(self, port: str, path: str, **asked: str) -> Any:
        return httpx.get(f"http://{HOST}:{PORTS[port]}{path}", params=asked, timeout=10, trust_env=False).json()

    def wait(self, look: Callable[[], T], what: str, seconds: float = 60.0) -> T:
        """The first thing that `look` finds. AssertionError after `seconds`."""
        until = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            assert time.monotonic() < until, f"waited {seconds:.0f} s for {what}"
            time.sleep(LOOK_S)

    def hears(self, *roles: str) -> bool:
        heard = [worker["role"] for worker in self.workers().values()]
        return all(heard.count(role) >= roles.count(role) for role in roles)

    # -- faults -------------------------------------------------------------------------------------------------------

    @contextmanager
    def shaped_line(self) -> Iterator[None]:
        ends = [WanEnd(self.engine, self.containers(service)[0]) for service in LINE_ENDS]
        try:
            for end in ends:
                end.shape(DELAY_MS, RATE_MBIT)
            yield
        finally:
            close_all(ends)

    @contextmanager
    def cut_line(self) -> Iterator[None]:
        """Packets between the sites are lost inside."""
        ends = [WanEnd(self.engine, self.containers(service)[0]) for service in CUT_AT]
        for end in ends:
            end.cut()
        try:
            yield
        finally:
            for end in ends:
                end.join()

    def crash(self, service: str) -> None:
        """Its process dies as from a fault of its own: the engine may restart it."""
        self.engine.place.kill(self.state(self.containers(service)[0])["Pid"])
