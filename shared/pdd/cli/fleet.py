"""What a deployment on one machine consists of: two sites, each with its broker, and the line between them.

Everything here is data; `deployment` starts it. Site B reaches site A, and P reaches MD's KV port, through the line alone.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ..core.errors import PddError
from ..core.ids import Role
from .ports import FreePorts, is_free

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parents[3]  # the checkout: services/ and infra/ stand there
SITE_A, SITE_B = "a", "b"
ROUTER_GATE_DEFAULT = 8000


@dataclass(frozen=True, slots=True)
class Line:
    """The shape of the line between the sites, each way."""

    rate_mbit: float = 40.0
    delay_ms: float = 25.0  # one way


@dataclass(frozen=True, slots=True)
class Fleet:
    """What to start. `settings` goes to all services, `role_settings` to one role's: names without PDD_, values as text."""

    model_dir: Path | None = None
    engine: str = "torch"
    dtype: str = "float32"
    workers: Mapping[Role, int] = field(default_factory=lambda: {Role.PREFILL: 1, Role.RELAY: 1, Role.MAIN: 1})
    router_port: int = ROUTER_GATE_DEFAULT  # 0: any free port
    line: Line = Line()
    redis_url: str = ""  # empty: a server of our own
    settings: Mapping[str, str] = field(default_factory=dict)
    role_settings: Mapping[Role, Mapping[str, str]] = field(default_factory=dict)


class Probe(Enum):
    """How to see that a part is ready: its first port takes a connection, or its `http` port answers /ready with 200."""

    CONNECT = "connect"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class Part:
    """One process to start. `gate`: parts of a lower gate are started, and ready, before."""

    name: str
    site: str
    command: tuple[str, ...]
    ports: dict[str, int]
    probe: Probe
    gate: int
    env: dict[str, str] = field(default_factory=dict)
