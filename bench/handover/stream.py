"""Through NATS, the router process and SSE: what one streamed token costs the router, with engines that cost nothing."""

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path

from pdd.cli.deployment import Deployment
from pdd.cli.fleet import ROUTER, Engine, Line
from tests.models import prompt

from .deployed import ask, deployed

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Streamed:
    """One round: so many streams at once."""

    streams: int
    tokens: int
    events: int  # that brought text
    router_cpu_s: float
    seconds: float

    @property
    def per_core_s(self) -> float:
        """Tokens per second of the router's processor time."""
        return self.tokens / self.router_cpu_s

    @property
    def token_us(self) -> float:
        return 1e6 * self.router_cpu_s / self.tokens


def cpu_s(pid: int) -> float:
    """User and system time of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


async def one_round(deployment: Deployment, streams: int, outputs: int, seed: int) -> Streamed:
    pid = deployment.record(ROUTER).pid
    before, began = cpu_s(pid), time.monotonic()
    asked = (
        ask(deployment.router_url, prompt(64, seed=seed + i), outputs, stream=True, route="P-MD")
        for i in range(streams)
    )
    answers = await asyncio.gather(*asked)
    assert all(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") for answer in answers), answers[0][-200:]
    events = sum(answer.count(b'"finish_reason":null') for answer in answers)
    return Streamed(streams, streams * outputs, events, cpu_s(pid) - before, time.monotonic() - began)


def measure(cost: str, widths: tuple[int, ...], outputs: int, rounds: int) -> list[Streamed]:
    """Rounds of each width in turn; the first of each, which warms caches and connections, is left out.

    `cost`: of core/cost.py. With instant engines tokens come faster than they are written, and several share an event; with a
    real step's cost each comes alone.
    """
    found = []
    with deployed(Engine.SCRIPTED, Line(1000.0, 1.0), SCRIPTED_COST=cost) as deployment:
        for i in range(rounds + 1):
            for streams in widths:
                done = asyncio.run(one_round(deployment, streams, outputs, 1000 * i + streams))
                found += [done] if i else []
    return found
