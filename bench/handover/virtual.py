"""The five machines in virtual time, with engines at the published costs, at a load where queues form at P and on the line.

Prompts are scaled: one prompt token here stands for 16 of a 64K context, so rates of prefill and line are scaled alike. Outputs are
not scaled: a decode step takes 40-50 ms, and MD's isolated extend over 100 of them 305 ms, as published.
"""

from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random
from statistics import median

from pdd.core.cost import EngineCost
from pdd.core.effects import RequestReport
from pdd.core.ids import Role
from pdd.core.routing import RoutingSettings
from pdd.core.singular import SingularSettings
from pdd.plan.house import House
from pdd.plan.house_parts import Client, EngineSpec, HouseSpec
from pdd.ports import KvShape

LINE_TOKENS_PER_S = 600.0
SLOWER = 20  # the line than the near path
SHAPE = KvShape(layers=1, kv_heads=1, head_dim=512, dtype="float32")
LONGEST = 4096
DOCUMENTS = 24  # prefixes that P and MD have already
PREFILL = EngineCost(0.010, 1100.0, decode_s=2e-4, import_bytes_per_s=1e9)
DECODE = EngineCost(0.040, 377.0, decode_s=2e-4, import_bytes_per_s=1e9)


@dataclass(frozen=True)
class Asked:
    """One request of the load."""

    at: float
    ids: tuple[int, ...]
    outputs: int


@dataclass(frozen=True)
class Variant:
    """One way to serve the load."""

    name: str
    policy: str = "adaptive"
    route: str = ""
    same_site: bool = False
    slice_tokens: int = 24  # of an extend beside MD's running batch


@dataclass(frozen=True)
class Served:
    """One request as its client saw it."""

    client: Client
    asked_at: float

    @property
    def report(self) -> RequestReport:
        assert self.client.complete
        return self.client.complete.report

    def token_s(self, index: int) -> float:
        """Seconds to output `index`."""
        return self.client.spoken_at[index] - self.asked_at

    @property
    def median_gap(self) -> float:
        return median(self._gaps)

    @property
    def _gaps(self) -> list[float]:
        """Between the tokens that decodes write: from the second on."""
        return [b - a for a, b in pairwise(self.client.spoken_at[1:])]

    @property
    def stretch(self) -> float:
        """Largest gap over median gap."""
        return max(self._gaps) / self.median_gap

    @property
    def fence_stretch(self) -> float | None:
        """The wait for MD's first token over the median gap; None where RLD wrote nothing before it."""
        fence = self.report.fence
        if fence is None or fence < 2 or fence >= len(self.client.spoken_at):
            return None
        return (self.client.spoken_at[fence] - self.client.spoken_at[fence - 1]) / self.median_gap

    @property
    def relayed(self) -> int:
        """Tokens that RLD wrote."""
        return sum(stop - start for role, start, stop in self.report.spoke if role == Role.RELAY)


def house(variant: Variant) -> House:
    line = LINE_TOKENS_PER_S * SHAPE.bytes_per_token
    engine = EngineSpec(pages=16_384, max_sequences=128, max_context=2 * LONGEST, chunk_tokens=256, cost=DECODE)
    spec = HouseSpec(
        engines={
            Role.PREFILL: replace(engine, cost=PREFILL),
            Role.RELAY: engine,
            Role.MAIN: replace(engine, chunk_tokens=variant.slice_tokens),
        },
        sites={"m1": "a"} if variant.same_site else {},
        kv_shape=SHAPE,
        line_bytes_per_s=line,
        near_bytes_per_s=SLOWER * line,
        line_rtt_s=0.02,
        staging_bytes=4 << 30,
        wire_chunk_tokens=256,
        routing=RoutingSettings(
            prefill_tokens_per_s=1100.0,
            line_bytes_per_s=line,
            near_bytes_per_s=SLOWER * line,
            line_rtt_s=0.02,
            host_price_s=1e6,  # the relay has its own worker here
        ),
        policy=variant.policy,
        singular=SingularSettings(cap=0.0),  # every request ends at MD, so that all can be compared
    )
    return House(spec, seed=1)


def documents() -> list[tuple[int, ...]]:
    rng = Random(5)
    return [tuple(rng.randrange(3, 31_000) for _ in range(LONGEST)) for _ in range(DOCUMENTS)]


def load(count: int, per_s: float, seed: int = 7) -> list[Asked]:
    """Poisson arrivals; 88 % of prompt tokens are prefixes that both sites have: three in four requests hit 97 %, one in ten
    hardly at all.
    """
    rng, known = Random(seed), documents()
    at, asked = 0.0, []
    for _ in range(count):
        at += rng.expovariate(per_s)
        length = rng.randrange(LONGEST // 2, LONGEST)
        kind = rng.random()
        hit = 0.97 if kind < 0.75 else 0.8 if kind < 0.9 else rng.uniform(0.02, 0.5)
        shared = rng.choice(known)[: int(length * hit)]
        own = tuple(rng.randrange(3, 31_000) for _ in range(length - len(shared)))
        asked.append(Asked(at, shared + own, rng.randrange(60, 260)))
    return asked


def play(variant: Variant, asked: list[Asked]) -> list[Served]:
    """All of them served, each output checked against one engine's."""
    world = house(variant)
    world.run(2.0)
    for ids in documents():
        world.submit(ids, 2, route="P-MD")
        _settle(world, variant)
    served: list[Served] = []

    def submit(one: Asked) -> None:
        client = world.submit(one.ids, one.outputs, route=variant.route)
        served.append(Served(client, world.world.now()))

    for one in asked:
        world.world.call_later(one.at, partial(submit, one))
    world.run(asked[-1].at + 1)
    _settle(world, variant)
    for one in served:
        if one.client.problem or one.client.ids != world.baseline(one.client):
            raise AssertionError(f"{variant.name}: {one.client.asked.request} is not what one engine writes")
    return served


def _settle(world: House, variant: Variant) -> None:
    if not world.settle(600):
        raise AssertionError(f"{variant.name}: {world.leftovers()}")
