"""`pdd doctor`: what an operator would look at first when something is wrong, each with what to do about it.

It looks from where it runs: in a service's container it has that service's environment, and so its broker, credentials and
model. On a laptop it looks at what `pdd up` started. Each look is bounded; none changes anything.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ..adapters.credentials import Credentials
from ..adapters.local_servers import Login
from ..core.errors import PddError, SettingsError
from ..runtime.settings import ServiceSettings, read_settings
from .doctor_looks import broker, certificates, collector, own_port, redis, router, versions
from .doctor_place import Finding, Place, State, bad
from .processes import alive
from .run_directory import Deployed, RunDirectory

LOOK_S = 15.0
LOOKS: tuple[Callable[[Place], Awaitable[list[Finding]]], ...] = (
    versions,
    certificates,
    own_port,
    broker,
    redis,
    router,
    collector,
)
COLOURS = {State.OK: "green", State.WARN: "yellow", State.FAIL: "red", State.SKIP: "dim"}


class DoctorSettings(ServiceSettings):
    """What a service is told, none of it required, and nothing of a machine's own taken for granted."""

    model_dir: Path | None = None
    redis_url: str = ""


def doctor(run: RunDirectory, console: Console, *, as_json: bool) -> bool:
    """Prints; returns whether nothing failed."""
    try:
        findings = asyncio.run(_look(_place(run)))
        findings = _processes(run) + findings
    except SettingsError as error:
        findings = [bad("settings", str(error), "correct the environment, then look again")]
    if as_json:
        console.print_json(data=[dataclasses.asdict(finding) for finding in findings])
    else:
        _print(findings, console)
    return all(finding.state is not State.FAIL for finding in findings)


def _place(run: RunDirectory) -> Place:
    settings = read_settings(DoctorSettings)
    deployed = run.read()
    if deployed and "nats_url" not in settings.model_fields_set:
        return _laptop(deployed)
    return Place(
        site=settings.site,
        nats_url=settings.nats_url,
        credentials=Credentials(settings.credentials_dir),
        redis_url=settings.redis_url or None,
        router=None,
        otlp_endpoint=settings.otlp_endpoint or None,
        model_dir=settings.model_dir,
        http_port=settings.http_port or None,
    )


def _laptop(deployed: Deployed) -> Place:
    """What `pdd up` started, by its record."""
    ports = {record.name: record.ports for record in deployed.processes}
    redis_port = ports.get("redis", {}).get("redis")
    return Place(
        site="a",
        nats_url=Login().at("nats", ports["nats-a"]["nats"]),
        credentials=Credentials(),
        redis_url=f"redis://127.0.0.1:{redis_port}/0" if redis_port else None,
        router=deployed.router,
        otlp_endpoint=None,
        model_dir=Path(deployed.model) if deployed.model else None,
        http_port=None,
    )


async def _look(place: Place) -> list[Finding]:
    found = await asyncio.gather(*(_bounded(look, place) for look in LOOKS))
    return [finding for findings in found for finding in findings]


async def _bounded(look: Callable[[Place], Awaitable[list[Finding]]], place: Place) -> list[Finding]:
    try:
        async with asyncio.timeout(LOOK_S):
            return await look(place)
    except TimeoutError:
        return [
            bad(look.__name__, f"no answer within {LOOK_S:.0f} s", "something takes connections and does not answer")
        ]
    except PddError as error:
        return [bad(look.__name__, str(error), "see the message")]


def _processes(run: RunDirectory) -> list[Finding]:
    deployed = run.read()
    dead = [record for record in deployed.processes if not alive(record)] if deployed else []
    return [
        bad("processes", f"{record.name} has ended", f"its log: {record.log}; `pdd down`, then `pdd up`")
        for record in dead
    ]


def _print(findings: list[Finding], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("", "what", "found", "do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        colour = COLOURS[finding.state]
        table.add_row(f"[{colour}]{finding.state}[/{colour}]", finding.what, finding.found, finding.do)
    console.print(table)
