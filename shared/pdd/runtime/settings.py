"""What a process is told: PDD_ environment variables, typed, read once.

Every wrong value and every unknown PDD_ name is reported together, with the nearest right name. A name that belongs to
another role is fine: all services of a site can share one environment. Nothing else in PDD reads the environment.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import DirectoryPath, Field, FilePath, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from ..core.blocks import HASH_BLOCK
from ..core.cost import COSTS
from ..core.errors import SettingsError
from ..core.line_settings import LineSettings
from ..core.policies import POLICIES
from ..core.routing import RoutingSettings
from ..core.singular import SingularSettings
from ..core.timeouts import TimeOuts

PREFIX = "PDD_"
NESTED = "__"
MIB = 1 << 20


class ServiceSettings(BaseSettings):
    """What every service is told."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter=NESTED, frozen=True)

    site: str = Field("a", pattern=r"^[a-z0-9-]+$", description="the site this process stands in")
    name: str = Field("", pattern=r"^[A-Za-z0-9_-]*$", description="unique in the fleet; default: role, host and port")
    nats_url: str = Field("nats://127.0.0.1:4222", description="this site's broker")
    credentials_dir: DirectoryPath | None = Field(
        None, description="what `make certs` made for this site: TLS, nkey, Redis' password; empty: plain connections"
    )
    http_host: str = Field(
        "127.0.0.1", description="where /health, /live, /ready and /metrics (and the router's API) listen"
    )
    http_port: int = Field(0, ge=0, le=65535, description="0: any free port")
    drain_s: float = Field(30.0, gt=0, le=60, description="after SIGTERM, how long running requests may take")
    otlp_endpoint: str = Field(
        "", description="OTLP over HTTP, for example http://127.0.0.1:4318; empty: no traces leave"
    )
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    timeouts: TimeOuts = Field(default_factory=TimeOuts, description="one table: docs/operations.md")


class WorkerSettings(ServiceSettings):
    """What a process with an engine is told: prefill, relay_decode, main_decode."""

    engine: Literal["torch", "scripted"] = Field("torch", description="scripted: invented tokens at a chip's cost")
    model_dir: DirectoryPath = Field(description="a Hugging Face folder; the scripted engine reads its shape alone")
    scripted_cost: str = Field("two-cores-135m", description="whose cost the scripted engine has: core/cost.py")
    dtype: Literal["float32", "bfloat16", "float16"] = Field("bfloat16", description="of weights and KV here")
    device: str = Field("cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="`cuda`: the same code; not run yet")
    threads: int = Field(1, ge=1, description="of the engine's arithmetic")
    page_tokens: int = Field(16, ge=1, le=HASH_BLOCK, description=f"tokens in a page; divides {HASH_BLOCK}")
    pages: int = Field(2048, ge=8, description="the KV pool, where memory_bytes is 0")
    memory_bytes: int = Field(
        0, ge=0, description="for weights, KV and a step's work together: the pool has the pages that it leaves"
    )
    max_sequences: int = Field(32, ge=1, description="in the running batch")
    max_context: int = Field(0, ge=0, description="tokens of one request; 0: what the model and the pool allow")
    chunk_tokens: int = Field(256, ge=1, description="prompt tokens in one step; each such chunk leaves at once")
    kv_host: str = Field("127.0.0.1", description="where KV is taken")
    kv_port: int = Field(0, ge=0, le=65535, description="0: any free port")
    kv_address: str = Field(
        "", description="host:port as P reaches it, when a proxy or NAT stands between; empty: as bound"
    )
    kv_tls: bool = Field(True, description="encrypt KV between the sites, where credentials_dir has certificates")
    line: LineSettings = Field(default_factory=LineSettings, description="how KV crosses: docs/operations.md")
    staging_bytes: int = Field(512 * MIB, ge=MIB, description="memory for KV that has landed and is not imported yet")

    @field_validator("scripted_cost")
    @classmethod
    def _known_cost(cls, name: str) -> str:
        return _one_of(COSTS, name)

    @field_validator("page_tokens")
    @classmethod
    def _divides_the_hash_block(cls, tokens: int) -> int:
        if HASH_BLOCK % tokens:
            raise ValueError(f"must divide {HASH_BLOCK}")
        return tokens


class RouterSettings(ServiceSettings):
    """What the router is told."""

    http_port: int = Field(8000, ge=0, le=65535)
    model_dir: DirectoryPath = Field(description="the same folder as the workers': tokenizer and chat template")
    model_name: str = Field("", description="as clients name it; empty: the folder's name")
    policy: str = Field("adaptive", description="how a running request is handed over")
    max_requests: int = Field(256, ge=1, description="at once; beyond it: 429 with Retry-After")
    relay_bound: int = Field(
        512, ge=0, description="RLD writes so many tokens for one request, the fuller it is the fewer; 0: no bound"
    )
    routing: RoutingSettings = Field(default_factory=RoutingSettings, description="priors and prices of routes")
    singular: SingularSettings = Field(default_factory=SingularSettings, description="when a transfer may be cut")
    api_keys: str = Field("", repr=False, description="separated by commas; empty, and no file: everybody may ask")
    api_keys_file: FilePath | None = Field(None, description="one key a line, perhaps with its own bound behind it")
    key_requests: int = Field(0, ge=0, description="of one key at once; beyond it: 429; 0: no bound")
    cors_origins: str = Field("", description="whose pages may ask from a browser, by commas; `*`: all; empty: none")
    report: bool = Field(False, description="answer `x-pdd-report: 1` with how the request went")
    test_hooks: bool = Field(False, description="allow the x-pdd-route and x-pdd-handover-after request headers")

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, name: str) -> str:
        return _one_of(POLICIES, name)


class IndexSettings(ServiceSettings):
    """What the prefix index is told."""

    redis_url: str = Field("redis://127.0.0.1:6379/0", description="Redis 7+ or Valkey, of this site alone")
    redis_namespace: str = Field("pdd", min_length=1, description="keeps fleets apart that share one Redis")


class LocalSettings(BaseSettings):
    """What the `pdd` command is told."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True)

    cache_dir: Path = Field(Path.home() / ".cache" / "pdd", description="converted models")
    run_dir: Path = Field(
        Path.home() / ".cache" / "pdd" / "run", description="records and logs of the deployment on this machine"
    )


ALL_SETTINGS: tuple[type[BaseSettings], ...] = (WorkerSettings, RouterSettings, IndexSettings, LocalSettings)

S = TypeVar("S", bound=BaseSettings)


def read_settings(kind: type[S]) -> S:
    """Raises SettingsError naming everything that is wrong."""
    wrong = _unknown_names()
    try:
        settings = kind()
    except ValidationError as error:
        wrong += [_story(item) for item in error.errors()]
        raise SettingsError(_report(wrong)) from None
    if wrong:
        raise SettingsError(_report(wrong))
    return settings


def child_environment(values: dict[str, str]) -> dict[str, str]:
    """This process's environment, but of PDD_ names only `values`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    return inherited | values


def known_names() -> list[str]:
    return sorted({name for kind in ALL_SETTINGS for name in _names_of(kind)})


def _story(item: ErrorDetails) -> str:
    name = _variable(item["loc"])
    if item["type"] == "missing":
        return f"{name}: is required and not set"
    return f"{name}: {item['msg']} (it is {item['input']!r})"


def _one_of(table: Mapping[str, object], name: str) -> str:
    if name not in table:
        raise ValueError(f"must be one of {', '.join(table)}")
    return name


def _names_of(kind: type[BaseSettings]) -> list[str]:
    names = []
    for name, info in kind.model_fields.items():
        table = info.annotation
        if isinstance(table, type) and is_dataclass(table):
            names += [_variable((name, field.name)) for field in fields(table)]
        else:
            names.append(_variable((name,)))
    return names


def _unknown_names() -> list[str]:
    known = known_names()
    wrong = []
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            wrong.append(f"{name}: no such setting" + (f"; did you mean {near[0]}?" if near else ""))
    return wrong


def _variable(location: tuple[int | str, ...]) -> str:
    return PREFIX + NESTED.join(str(part) for part in location).upper()


def _report(wrong: list[str]) -> str:
    return "\n".join([f"{len(wrong)} wrong setting{'s' if len(wrong) > 1 else ''}:", *(f"  {line}" for line in wrong)])
