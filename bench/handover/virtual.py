"""The five machines in virtual time, with engines at the published costs, at a load where queues form at P and on the line.

Prompts are scaled: one prompt token here stands for 16 of a 64K context, so rates of prefill and line are scaled alike. Outputs are
not scaled: a decode step takes 40-50 ms, and MD's isolated extend over 100 of them 305 ms, as published.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from statistics import median

from pdd.core.cost import EngineCost
from pdd.core.ids import Role
from pdd.core.routing import RoutingSettings
from pdd.core.singular import SingularSettings
from pdd.plan.house import Client, EngineSpec, House, HouseSpec
from pdd.ports import KvShape

LINE_TOKENS_PER_S = 2000.0
SLOWER = 20  # the line than the near path
SHAPE = KvShape(layers=1, kv_heads=1, head_dim=512, dtype="float32")
LONGEST = 4096
DOCUMENTS = 24  # prefixes that P and MD have already
PREFILL = EngineCost(0.010, 2200.0, decode_s=2e-4, import_bytes_per_s=1e9)
DECODE = EngineCost(0.040, 377.0, decode_s=2e-4, import_bytes_per_s=1e9)
WARM_S = 60.0


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
    slice_tokens: int = 32  # of an extend beside MD's running batch


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
            prefill_tokens_per_s=2200.0,
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
    at, asked = WARM_S, []
    for _ in range(count):
        at += rng.expovariate(per_s)
        length = rng.randrange(LONGEST // 2, LONGEST)
        kind = rng.random()
        hit = 0.97 if kind < 0.75 else 0.8 if kind < 0.9 else rng.uniform(0.02, 0.5)
        shared = rng.choice(known)[: int(length * hit)]
        own = tuple(rng.randrange(3, 31_000) for _ in range(length - len(shared)))
        asked.append(Asked(at, shared + own, rng.randrange(60, 260)))
    return asked


def play(variant: Variant, asked: list[Asked]) -> list[Client]:
    """All of them served, each output checked against one engine's."""
    world = house(variant)
    world.run(2.0)
    for i, ids in enumerate(documents()):
        warm = {"name": f"warm{i}", "route": "P-MD"}
        world.world.call_later(i * 2.0, lambda ids=ids, warm=warm: world.submit(ids, 2, **warm))  # type: ignore[misc]
    clients: list[Client] = []

    def submit(one: Asked) -> None:
        clients.append(world.submit(one.ids, one.outputs, route=variant.route))

    for one in asked:
        world.world.call_later(one.at - world.world.now(), lambda one=one: submit(one))  # type: ignore[misc]
    world.run(asked[-1].at + 1)
    if not world.settle(600):
        raise AssertionError(f"{variant.name}: {world.leftovers()}")
    for client in clients:
        if client.problem or client.ids != world.baseline(client):
            raise AssertionError(f"{variant.name}: {client.asked.request} is not what one engine writes")
    return clients


# -- what is measured -------------------------------------------------------------------------------------------------


def submitted_at(client: Client, asked: Asked) -> float:
    return asked.at


def gaps(client: Client) -> list[float]:
    """Between the tokens that decodes write: from the second on."""
    return [b - a for a, b in pairwise(client.spoken_at[1:])]


def stretch(client: Client) -> float:
    """Largest gap over median gap."""
    between = gaps(client)
    return max(between) / median(between)


def at_the_fence(client: Client) -> float | None:
    """The wait for MD's first token, over the median gap; None where nothing was handed over."""
    fence = client.complete.report.fence if client.complete else None
    if fence is None or fence < 2 or fence >= len(client.spoken_at):
        return None
    return (client.spoken_at[fence] - client.spoken_at[fence - 1]) / median(gaps(client))


def relayed(clients: Iterable[Client]) -> int:
    """Tokens that RLD wrote."""
    spoke = [part for client in clients if client.complete for part in client.complete.report.spoke]
    return sum(stop - start for role, start, stop in spoke if role == Role.RELAY)
