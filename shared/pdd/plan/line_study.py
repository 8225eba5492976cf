"""The published line study, on the simulated line alone: 20 Gbit/s, 80 requests/s, 90 % mean hit, skewed or even.

A transfer's time counts from when it was asked for. What they publish: skewed P50 0.248 s, P99 18.9 s; even P50 1.2 s, P99 25.5 s.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ..core.ids import Peer, Role
from ..core.llms import LLMS
from ..sim.line import SimLine
from ..sim.report.plot import line_plot
from ..sim.report.summary import spread
from ..sim.workload.draw import Draw
from ..sim.workload.hits import HitsLoad
from ..sim.world import World
from .compare import STOP_AND_WAIT_GBIT_S

GBIT = 1e9 / 8
SENDERS = 10
SKEWED = HitsLoad(context_tokens=65536, outputs=Draw(1))
EVEN = HitsLoad(context_tokens=65536, outputs=Draw(1), low=0.85, span=0.10, alpha=1.0, beta=1.0)
TRAFFIC = {"skewed, 2-99 %": SKEWED, "even, 85-95 %": EVEN}


@dataclass(frozen=True, slots=True)
class Transport:
    """`order`, `flow_gbit_s` and `flows` as in a scenario's [line]; `compression`: bytes before / after."""

    order: str
    flow_gbit_s: float = 0.0
    flows: int = 0
    compression: float = 1.0


TRANSPORTS = {
    "stop-and-wait": Transport("fair", STOP_AND_WAIT_GBIT_S),
    "stop-and-wait, 256 flows at most": Transport("fair", STOP_AND_WAIT_GBIT_S, 256),
    "shared as TCP shares": Transport("fair"),
    "shortest first over all": Transport("shortest"),
    "ours": Transport("owner"),
    "ours, compressed 2 : 1": Transport("owner", compression=2.0),
}


@dataclass(slots=True)
class _Study:
    world: World
    line: SimLine
    times: list[float] = field(default_factory=list)

    def send(self, size: float, sender: Peer) -> None:
        begun = self.world.now()

        def progress() -> None:
            if flow.left <= 0:
                self.times.append(self.world.now() - begun + self.line.rtt_s / 2)

        flow = self.line.open(progress, size, begun, sender)
        self.line.offer(flow, size)


def study(
    load: HitsLoad,
    transport: Transport,
    seed: int,
    *,
    gbit_s: float = 20.0,
    rate_per_s: float = 80.0,
    seconds: float = 200.0,
) -> dict[str, float]:
    """Spread of the transfers' seconds, and the line's use."""
    world = World(seed)
    line = SimLine(
        world,
        gbit_s * GBIT,
        0.02,
        flow_bytes_per_s=transport.flow_gbit_s * GBIT,
        order=transport.order,
        flows_max=transport.flows,
    )
    found = _Study(world, line)
    rng = Random(f"line study {seed}")
    token_bytes = LLMS["deepseek-v4-pro"].kv_bytes / transport.compression
    senders = [Peer("a", Role.PREFILL, f"p{i}", 1) for i in range(SENDERS)]
    now, count = 0.0, 0
    while (now := now + rng.expovariate(rate_per_s)) < seconds:
        size, sender = load.context_tokens * (1 - load.hit(rng)) * token_bytes, senders[count % SENDERS]
        world.call_later(now, _sending(found, size, sender))
        count += 1
    world.run(seconds)
    use = line.carried / (line.bytes_per_s * seconds)
    world.run(20 * seconds)
    return spread(found.times) | {"use": use, "unfinished": float(count - len(found.times))}


def _sending(found: _Study, size: float, sender: Peer) -> Callable[[], None]:
    return lambda: found.send(size, sender)


def whole(seed: int, seconds: float = 200.0) -> dict[str, dict[str, dict[str, float]]]:
    """{traffic: {transport: figures}}"""
    return {
        traffic: {name: study(load, transport, seed, seconds=seconds) for name, transport in TRANSPORTS.items()}
        for traffic, load in TRAFFIC.items()
    }


def over_load(seed: int, rates: tuple[float, ...] = (20, 40, 60, 70, 80, 84)) -> str:
    """P99 of the skewed transfers over the request rate, as a plot."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for name in ("stop-and-wait", "shared as TCP shares", "ours", "ours, compressed 2 : 1"):
        points = [
            (rate, study(SKEWED, TRANSPORTS[name], seed, rate_per_s=rate, seconds=100.0)["p99"]) for rate in rates
        ]
        lines[name] = points
    return line_plot("P99 of a transfer over 20 Gbit/s", lines, x="requests/s", y="seconds", log_y=True, mark=True)


def as_rows(found: dict[str, dict[str, dict[str, float]]]) -> list[list[Any]]:
    return [
        [traffic, name, *(f"{one[key]:.3f}" for key in ("p50", "p90", "p99", "p99.9")), f"{one['use']:.0%}"]
        for traffic, transports in found.items()
        for name, one in transports.items()
    ]
