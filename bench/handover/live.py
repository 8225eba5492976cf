"""Real processes with torch on this machine: the policies in turn, in one deployment."""

import asyncio
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from pdd.cli.deployment import Deployment
from pdd.cli.fleet import Engine, Line
from tests.models import prompt

from .deployed import deployed, report, with_policy

OUTPUTS = 400


@dataclass(frozen=True)
class Handed:
    """One request, by the router's own clock."""

    policy: str
    usual_s: float  # the median gap, from the second token on
    largest_s: float
    fence_s: float
    relayed: int


def handed(policy: str, told: dict[str, Any]) -> Handed | None:
    """None where the relay finished first."""
    fence, at = told["fence"], told["token_at_s"]
    if not fence:
        return None
    gaps = [b - a for a, b in pairwise(at[1:])]
    return Handed(policy, median(gaps), max(gaps), at[fence] - at[fence - 1], fence - 1)


async def at_once(deployment: Deployment, count: int, seed: int) -> list[dict[str, Any]]:
    asked = (report(deployment.router_url, prompt(400, seed=seed + i), OUTPUTS, route="P-RLD-MD") for i in range(count))
    return list(await asyncio.gather(*asked))


def measure(policies: tuple[str, ...], rounds: int, count: int) -> list[Handed]:
    found = []
    with deployed(Engine.TORCH, Line(64.0, 10.0), CHUNK_TOKENS="32") as deployment:
        for i in range(rounds):
            for policy in policies:
                with_policy(deployment, policy)
                told = asyncio.run(at_once(deployment, count, 100 * i + sum(policy.encode())))
                found += [one for one in (handed(policy, each) for each in told) if one]
    return found
