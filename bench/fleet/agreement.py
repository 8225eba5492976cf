"""One scenario live and simulated: scripted engines in real processes over real brokers and sockets, and the same fleet in virtual time.

Live, the load generator is the client; both runs give the same kind of record, so their summaries can be laid side by side. Where a
router sends a request hangs on milliseconds, and a few such turns move a share by points: several seeds are counted together.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from loadgen.client import Client
from loadgen.drive import Player
from loadgen.target import PromptKind, find_target
from pdd.cli.deployment import Deployment
from pdd.cli.fleet import Engine, Fleet, Line
from pdd.cli.run_directory import RunDirectory
from pdd.core.blocks import HASH_BLOCK
from pdd.core.ids import Role
from pdd.plan.fleet_parts import FleetPlan
from pdd.plan.simulated import SimFleet
from pdd.sim.report import Run
from pdd.sim.scenario import Scenario, Workers

SILENCE_S = 60.0
COMPARED = ("ttft_s", "second_token_s")
WITHIN = 0.15


def live_fleet(scenario: Scenario, plan: FleetPlan, model_dir: Path) -> Fleet:
    """The scenario's fleet as processes: the same costs, pools, chunks, routing priors and line."""
    tables = {Role.PREFILL: scenario.fleet.prefill, Role.RELAY: scenario.fleet.relay, Role.MAIN: scenario.fleet.main}
    routing = {f"ROUTING__{name.upper()}": str(value) for name, value in asdict(plan.routing).items()}
    return Fleet(
        model_dir=model_dir,
        engine=Engine.SCRIPTED,
        dtype="bfloat16",
        prefill=tables[Role.PREFILL].workers,
        relay=tables[Role.RELAY].workers,
        main=tables[Role.MAIN].workers,
        router_port=0,
        line=Line(rate_mbit=scenario.line.gbit_s * 1000, delay_ms=scenario.line.rtt_ms / 2),
        settings={
            "POLICY": scenario.fleet.policy,
            "RELAY_BOUND": str(scenario.fleet.relay_bound),
            "PAGE_TOKENS": str(HASH_BLOCK),
            "LINE__PACKED": "false",
            **routing,
        },
        role_settings={role: _engine_settings(table, scenario.context_tokens) for role, table in tables.items()},
    )


def _engine_settings(table: Workers, context_tokens: int) -> dict[str, str]:
    return {
        "SCRIPTED_COST": table.chip,
        "PAGES": str(table.pages),
        "MAX_SEQUENCES": str(table.max_sequences),
        "CHUNK_TOKENS": str(table.chunk_tokens),
        "MAX_CONTEXT": str(context_tokens),
    }


def play_live(scenario: Scenario, fleet: Fleet, seeds: Sequence[int], folder: Path, base: Path) -> Run:
    """Each seed on a deployment of its own, all at once: they leave the machine idle most of the time."""

    async def play(urls: list[str]) -> list[Run]:
        return await asyncio.gather(*(_play(scenario, url, seed, base) for url, seed in zip(urls, seeds, strict=True)))

    with ExitStack() as running:
        deployments = [Deployment(fleet, RunDirectory(folder / str(seed))) for seed in seeds]
        return pooled(asyncio.run(play([running.enter_context(one).router_url for one in deployments])))


async def _play(scenario: Scenario, url: str, seed: int, base: Path) -> Run:
    run = Run("live", warmup_s=scenario.load.warmup_s)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=SILENCE_S, limits=limits, trust_env=False) as http:
        target = await find_target(http, url, "", PromptKind.IDS, exact_length=True)
        client = Client(http, target, run.gaps, scenario.load.max_tokens, lambda tokens: None)
        client.restart_clock()
        await Player(client, scenario.load, run, lambda record: None).play(scenario.load.timed(seed, base))
        run.seconds = client.now()
    return run


def play_simulated(scenario: Scenario, plan: FleetPlan, seeds: Sequence[int], base: Path) -> Run:
    return pooled([SimFleet(plan, scenario.load, "simulated", seed).run(base) for seed in seeds])


def pooled(runs: Sequence[Run]) -> Run:
    """All requests as if of one run; each has kept its own clock."""
    first = runs[0]
    records = [record for run in runs for record in run.records]
    return Run(first.title, records, warmup_s=first.warmup_s, seconds=max(run.seconds for run in runs))


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of both. `off`: how far the prediction is from the live one, as a share of it."""

    name: str
    live: float
    simulated: float

    @property
    def off(self) -> float:
        return abs(self.simulated - self.live) / abs(self.live) if self.live else abs(self.simulated)


def compared(live: dict[str, Any], simulated: dict[str, Any]) -> list[Figure]:
    lines = [
        Figure(f"{key.removesuffix('_s').replace('_', ' ')} {share}, s", live[key][share], simulated[key][share])
        for key in COMPARED
        for share in ("p50", "p90")
    ]
    lines.append(Figure("per output p50, s", live["tpot_s"]["p50"], simulated["tpot_s"]["p50"]))
    lines += [
        Figure(f"share of outputs, {role}", live["shares"].get(role, 0.0), simulated["shares"].get(role, 0.0))
        for role in ("prefill", "relay_decode", "main_decode")
    ]
    lines += [
        Figure(f"hit rate, {role}", live["hit"][role], simulated["hit"][role]) for role in ("prefill", "main_decode")
    ]
    crossed = [found["line"].get("bytes_per_request", 0.0) / 1e6 for found in (live, simulated)]
    return [*lines, Figure("MB over the line a request", *crossed)]
