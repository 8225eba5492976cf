"""A scenario: who asks what (`[load]`), of which fleet over which line, and what was promised. One TOML file, read by the load
generator, the simulator and the planner. Unknown names and wrong values are told with their place.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from ..core.errors import PddError
from .workload import Load


class ScenarioError(PddError):
    """The file is missing or wrong; the message says where."""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all tables."""


class Workers(Table, frozen=True, kw_only=True):
    """Workers of one role. `chip` and the scenario's model give the cost of a step; `cost` overrides single numbers of it."""

    workers: int = 1
    chip: str = ""
    cards: int = 8
    chunk_tokens: int = 4096
    max_sequences: int = 256
    pages: int = 0  # of 64 tokens; 0: what the chip's memory leaves beside the weights, up to MOST_PAGES
    cost: dict[str, float] = {}


class FleetTable(Table, frozen=True, kw_only=True):
    prefill: Workers = Workers()
    relay: Workers = Workers(workers=0)
    main: Workers = Workers()
    same_site: bool = False  # MD stands beside P: its KV takes the near path
    router: str = "ours"  # | hit_threshold (as published) | low_hits_on_relay (the forbidden one)
    hit_threshold: float = 0.95
    policy: str = "one_shot"
    relay_bound: int = 0
    max_inflight: int = 100_000


class LineTable(Table, frozen=True, kw_only=True):
    """The way between the sites. `flow_gbit_s`: the most one transfer gets, however idle the line (stop-and-wait); 0: no such limit."""

    gbit_s: float = 20.0
    rtt_ms: float = 20.0
    flow_gbit_s: float = 0.0
    order: str = "owner"  # | shortest | fair | arrival: which waiting transfer the line serves
    flows: int = 0  # transfers at once; more wait; 0: no limit
    streaming: bool = True  # each chunk leaves as it is computed, or all after the last
    compression: float = 1.0  # bytes before / after
    near_gbit_s: float = 400.0


class SlaTable(Table, frozen=True, kw_only=True):
    """Promised to 90 % of requests. Time to first token counts until a token after the KV's transfer where `with_transfer`."""

    ttft_s: float = 10.0
    tpot_s: float = 0.05
    with_transfer: bool = True


class PriceTable(Table, frozen=True, kw_only=True):
    """In one unit: a node of 8 cards by chip, and the line: as it is, or in proportion where `line_gbit_s` says what the price buys."""

    nodes: dict[str, float] = {}
    line: float = 0.0
    line_gbit_s: float = 0.0


class Crash(Table, frozen=True, kw_only=True):
    """A worker's process is gone at once; `back_s` later it starts again, empty. 0: it stays away."""

    worker: str  # p1, r1, m1, ...
    at_s: float
    back_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.at_s, self.back_s) < 0:
            raise ValueError("crashes: at_s and back_s are not negative")


class Published(Table, frozen=True, kw_only=True):
    """What others say of a system, to stand beside what is simulated. Times in seconds at P50, P90, P99; 0 and empty: they do not say."""

    requests_per_s: float = 0.0
    cost: float = 0.0
    ttft_s: tuple[float, ...] = ()  # with the KV's transfer where the SLA counts it
    tpot_s: tuple[float, ...] = ()
    relay_share: float = 0.0


class Scenario(Table, frozen=True, kw_only=True):
    name: str
    about: str = ""
    load: Load
    model: str = ""
    fleet: FleetTable = FleetTable()
    line: LineTable = LineTable()
    sla: SlaTable = SlaTable()
    price: PriceTable = PriceTable()
    context_tokens: int = 1 << 17  # the longest request, answer included
    routing: dict[str, float] = {}
    singular: dict[str, float] = {}
    timeouts: dict[str, float] = {}
    crashes: list[Crash] = []
    systems: dict[str, dict[str, Any]] = {}  # to compare: what is different there, table by table
    published: dict[str, Published] = {}  # by system


def variant(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """The scenario with some values changed. Raises ScenarioError."""
    try:
        return msgspec.convert(_merged(msgspec.to_builtins(scenario), changes), Scenario)
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{scenario.name}, changed: {error}") from error


def with_trace(scenario: Scenario, trace: Path) -> Scenario:
    """The scenario with this trace's sessions instead of its own. Raises ScenarioError.

    A [load.trace] keeps what else it says; without one, prompts are cut to what the scenario's context leaves beside an answer.
    """
    told: dict[str, Any] = {"path": str(trace.resolve()), "format": ""}
    if scenario.load.trace is None:
        told["context_tokens"] = scenario.context_tokens * 15 // 16
    return variant(scenario, {"load": {"agent": None, "hits": None, "trace": told}})


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merge, everything else is replaced."""
    found = dict(base)
    for key, value in changes.items():
        old = found.get(key)
        found[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return found


def read_scenario(path: Path) -> Scenario:
    """Raises ScenarioError."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Scenario)
    except FileNotFoundError:
        raise ScenarioError(f"{path}: no such scenario") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ScenarioError(f"{path}: {error}") from error
    except msgspec.ValidationError as error:
        raise ScenarioError(f"{path}: {error}") from error
