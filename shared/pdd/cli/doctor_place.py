"""Where the doctor looks, and what a look finds."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..adapters.credentials import Credentials


class State(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    state: State
    found: str
    do: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """None: not to be looked at from here."""

    site: str
    nats_url: str
    credentials: Credentials
    redis_url: str | None
    router: str | None  # host:port
    otlp_endpoint: str | None
    model_dir: Path | None
    http_port: int | None  # of the service whose environment this is


def good(what: str, found: str) -> Finding:
    return Finding(what, State.OK, found)


def doubtful(what: str, found: str, do: str) -> Finding:
    return Finding(what, State.WARN, found, do)


def bad(what: str, found: str, do: str) -> Finding:
    return Finding(what, State.FAIL, found, do)


def skipped(what: str, why: str) -> Finding:
    return Finding(what, State.SKIP, why)
