"""What a simulated fleet is made of, as data."""

from collections.abc import Callable
from dataclasses import dataclass

from ..core.batch import Limits
from ..core.blocks import HASH_BLOCK
from ..core.cost import EngineCost
from ..core.ids import Role
from ..core.roles.router import Router
from ..core.routing import RoutingSettings
from ..core.singular import SingularSettings
from ..core.timeouts import TimeOuts
from ..sim.kv import Sizes

PAGE_TOKENS = HASH_BLOCK


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """Workers of one role, alike."""

    count: int
    cost: EngineCost
    limits: Limits


@dataclass(frozen=True, slots=True)
class LinePlan:
    bytes_per_s: float = 2.5e9
    rtt_s: float = 0.02
    flow_bytes_per_s: float = 0.0  # 0: no limit
    order: str = "owner"
    flows: int = 0
    near_bytes_per_s: float = 50e9
    near_rtt_s: float = 0.0002


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Everything a simulated fleet is made of."""

    workers: dict[Role, WorkerPlan]
    line: LinePlan
    kv_bytes: int
    sizes: Sizes
    routing: RoutingSettings
    timeouts: TimeOuts = TimeOuts()
    singular: SingularSettings = SingularSettings()
    policy: str = "one_shot"
    relay_bound: int = 0
    same_site: bool = False
    max_inflight: int = 100_000
    staging_bytes: float = 1e12
    router: Callable[..., Router] = Router  # a baseline may route otherwise
    stride: int = 16  # decode steps of MD in one event
    grain: int = 1  # tokens that one id of a prompt stands for; `kv_bytes` and `sizes` are an id's, `limits` count ids


def limits_of(pages: int, max_sequences: int, chunk_tokens: int, max_context: int) -> Limits:
    """One page a hash block: the largest page, and so the fewest nodes to keep."""
    return Limits(pages, PAGE_TOKENS, max_sequences, max_context, chunk_tokens)
