"""What a deployment on one machine consists of: two sites, each with its broker, and the line between them.

All of it is data; `deployment` starts it. Site B reaches site A, and P reaches MD's KV port, through the line alone.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from pathlib import Path

from ..adapters.local_servers import Login, ServerCommand, nats_hub, nats_leaf, redis_server
from ..core.ids import Role
from .ports import FreePorts

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[3]  # the checkout: services/ and infra/ stand there
SITE_A, SITE_B = "a", "b"
ROUTER = "router"
LINE = "line"
ROUTER_PORT = 8000
DRAIN_S = 10.0
PAGES = 1024  # of 16 tokens: KV of two of the demo model's longest requests

# Several processes compute on few cores here: threads that spin while they wait would stop each other.
CALM = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}


class Engine(StrEnum):
    TORCH = "torch"
    SCRIPTED = "scripted"


@dataclass(frozen=True, slots=True)
class Line:
    """The shape of the line between the sites, each way."""

    rate_mbit: float = 60.0
    delay_ms: float = 25.0  # one way


@dataclass(frozen=True, slots=True)
class Fleet:
    """What to start. `settings` goes to all services, `role_settings` to one role's: names without PDD_, values as text."""

    model_dir: Path | None = None
    engine: Engine = Engine.TORCH
    dtype: str = "float32"
    prefill: int = 1
    relay: int = 1
    main: int = 1
    router_port: int = ROUTER_PORT  # 0: any free port
    line: Line = Line()
    redis_url: str = ""  # empty: a server of our own
    settings: Mapping[str, str] = field(default_factory=dict)
    role_settings: Mapping[Role, Mapping[str, str]] = field(default_factory=dict)

    @property
    def workers(self) -> dict[Role, int]:
        return {Role.PREFILL: self.prefill, Role.RELAY: self.relay, Role.MAIN: self.main}


class Probe(Enum):
    """How to see that a part is ready: its first port takes a connection, or its http port answers /ready with 200."""

    CONNECT = "connect"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class Part:
    """One process to start. All parts of a lower `gate` are ready before."""

    name: str
    site: str
    command: tuple[str, ...]
    ports: dict[str, int]
    probe: Probe
    gate: int
    env: dict[str, str] = field(default_factory=dict, repr=False)


def parts_of(fleet: Fleet, data: Path) -> list[Part]:
    """In the order of starting. `data`: a folder for the servers. Raises ServerMissing where a program is not installed."""
    return [*_Layout(fleet, data).parts()]


class _Layout:
    """The ports, and so the addresses, of one deployment."""

    def __init__(self, fleet: Fleet, data: Path) -> None:
        self.fleet, self.data = fleet, data
        self.ports = FreePorts()
        self.login, self.leaf_login = Login(), Login("site-b", "site-b")
        leaf, self.leaf_over_line = self.ports.take(), self.ports.take()
        self.hub = nats_hub("nats-a", self.ports.take(), leaf, self.login, self.leaf_login)
        self.leaf = nats_leaf("nats-b", self.ports.take(), self.leaf_over_line, self.login, self.leaf_login)
        self.redis = None if fleet.redis_url else redis_server("redis", self.ports.take(), data)
        self.kv = [(self.ports.take(), self.ports.take()) for _ in range(fleet.main)]  # (over the line, at MD)
        self.over_line = [("--map-from-b", self.leaf_over_line, leaf), *(("--map", *ports) for ports in self.kv)]
        self.hub_ports = {"nats": self.hub.port, "leaf": leaf}

    def parts(self) -> Iterator[Part]:
        yield _server(self.hub, SITE_A, self.hub_ports)
        if self.redis:
            yield _server(self.redis, SITE_A, {"redis": self.redis.port})
        yield self._line()
        yield _server(self.leaf, SITE_B, {"nats": self.leaf.port}, gate=1)
        yield self._service(Role.INDEX, Role.INDEX, SITE_A, {"REDIS_URL": self.fleet.redis_url or self._redis_url()})
        for i in range(self.fleet.prefill):
            yield self._worker(Role.PREFILL, i, SITE_A, {})
        for i in range(self.fleet.relay):
            yield self._worker(Role.RELAY, i, SITE_A, {})
        for i, (over_line, at_main) in enumerate(self.kv):
            yield self._worker(Role.MAIN, i, SITE_B, {"KV_PORT": f"{at_main}", "KV_ADDRESS": f"{HOST}:{over_line}"})
        yield self._service(Role.ROUTER, ROUTER, SITE_A, {"REPORT": "true"}, port=self.fleet.router_port)

    def _redis_url(self) -> str:
        return self.redis.url if self.redis else ""

    def _line(self) -> Part:
        control = self.ports.take()
        line = self.fleet.line
        command = (
            *(sys.executable, "-m", "infra.wan.proxy"),
            *("--rate-mbit", f"{line.rate_mbit:g}", "--delay-ms", f"{line.delay_ms:g}"),
            *("--control", f"{HOST}:{control}"),
            *(word for way, listen, target in self.over_line for word in (way, f"{HOST}:{listen}={HOST}:{target}")),
        )
        return Part(LINE, "between", command, {"control": control}, Probe.CONNECT, 0)

    def _worker(self, role: Role, i: int, site: str, told: dict[str, str]) -> Part:
        fleet = self.fleet
        of_all = {"ENGINE": fleet.engine, "DTYPE": fleet.dtype, "PAGES": str(PAGES)}
        if fleet.engine is Engine.SCRIPTED:
            of_all["LINE__PACKED"] = "false"  # its KV is a pattern, which packs as no model's KV does
        return self._service(role, f"{role}-{i + 1}", site, of_all | told)

    def _service(self, role: Role, name: str, site: str, told: dict[str, str], port: int = 0) -> Part:
        http = port or self.ports.take()
        settings = {
            "SITE": site,
            "NAME": name,
            "NATS_URL": (self.hub if site == SITE_A else self.leaf).url,
            "HTTP_PORT": str(http),
            "MODEL_DIR": str(self.fleet.model_dir),
            "DRAIN_S": f"{DRAIN_S:g}",
            **told,
            **self.fleet.settings,
            **self.fleet.role_settings.get(role, {}),
        }
        env = CALM | {f"PDD_{key}": value for key, value in settings.items()}
        return Part(name, site, (sys.executable, "-m", f"services.{role}"), {"http": http}, Probe.HTTP, 1, env)


def _server(command: ServerCommand, site: str, ports: dict[str, int], gate: int = 0) -> Part:
    return Part(command.name, site, command.argv, ports, Probe.CONNECT, gate, command.env)
