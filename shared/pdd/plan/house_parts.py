"""What a house is made of, as data; and its clients, each with what it saw."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ..adapters.engine_scripted import SMALL_SHAPE, Script
from ..core.batch import Limits
from ..core.cost import EngineCost
from ..core.effects import Complete, Deliver, Reject
from ..core.events import RequestSubmitted
from ..core.ids import RequestId
from ..core.routing import RoutingSettings
from ..core.sampling import Finish
from ..core.singular import SingularSettings
from ..core.timeouts import TimeOuts
from ..ports import KvShape


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One worker's engine."""

    pages: int = 512
    page_size: int = 16
    max_sequences: int = 32
    max_context: int = 4096
    chunk_tokens: int = 64
    cost: EngineCost = EngineCost(step_s=0.02, prefill_tokens_per_s=2000.0, import_bytes_per_s=1e9)

    @property
    def limits(self) -> Limits:
        return Limits(self.pages, self.page_size, self.max_sequences, self.max_context, self.chunk_tokens)


@dataclass(frozen=True, slots=True)
class HouseSpec:
    """How many of each role stand where, and what lies between. `engines` goes by a worker's name, else by its role."""

    prefills: int = 1
    relays: int = 1
    mains: int = 1
    site_a: str = "a"
    site_b: str = "b"
    sites: dict[str, str] = field(default_factory=dict)  # workers, by name, that stand elsewhere than their role does
    engines: dict[str, EngineSpec] = field(default_factory=dict)
    script: Script = Script(mean_outputs=0)
    kv_shape: KvShape = SMALL_SHAPE
    line_bytes_per_s: float = 4000.0
    line_rtt_s: float = 0.05
    near_bytes_per_s: float = 1e9
    bus_delay_s: float = 0.0005
    answer_s: float = 0.0  # so much later a worker hears of its own engine; of its link, half as much
    answer_at: str = ""  # the only one who is so late; empty: all
    staging_bytes: int = 1 << 26
    wire_chunk_tokens: int = 32
    leased: bool = True  # the router owns the lines between sites
    timeouts: TimeOuts = TimeOuts()
    routing: RoutingSettings = RoutingSettings(line_bytes_per_s=5000.0, relay_price_s=0.5)
    policy: str = "one_shot"
    relay_bound: int = 0
    singular: SingularSettings = SingularSettings()
    max_inflight: int = 256


@dataclass(slots=True)
class Client:
    """What one client saw. `problem` holds a refusal; `spoken_at` the virtual time of each output."""

    asked: RequestSubmitted
    ids: list[int] = field(default_factory=list)
    spoken_at: list[float] = field(default_factory=list)
    finish: Finish | None = None
    complete: Complete | None = None
    problem: Reject | None = None
    gone: bool = False

    @property
    def ended(self) -> bool:
        return self.gone or self.finish is not None or self.problem is not None


class Clients:
    """The text port: every client of one router, each index checked as it comes."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.all: dict[RequestId, Client] = {}

    def deliver(self, effect: Deliver) -> None:
        client = self.all[effect.request]
        if effect.written.start != len(client.ids):
            raise AssertionError(f"{effect.request}: index {effect.written.start} after {len(client.ids)} outputs")
        client.ids.extend(effect.written.ids)
        client.spoken_at.extend([self.now()] * len(effect.written.ids))

    def complete(self, effect: Complete) -> None:
        client = self.all[effect.request]
        client.finish, client.complete = effect.finish, effect

    def reject(self, effect: Reject) -> None:
        self.all[effect.request].problem = effect
