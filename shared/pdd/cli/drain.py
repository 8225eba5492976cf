"""`pdd drain`: a worker takes nothing new, ends what it has, and may then be stopped without anybody noticing.

Where a worker is: by its name in the deployment of the run directory; by `--at`; without either, it is this container's own.
"""

import re
import time
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console

from ..core.errors import PddError
from ..runtime.settings import ServiceSettings, read_settings
from .run_directory import RunDirectory

LOOK_S, PATIENCE_S = 0.2, 5.0
DRAINED = "drained"
NAMED = re.compile(r"[a-z_]+-(?P<host>.+)-(?P<port>\d+)")  # a worker's default name: role, host and port


class DrainError(PddError):
    """The worker is not known, or does not answer; the message says what to do."""


def drain(
    run: RunDirectory, worker: str | None, at: str | None, wait_s: float, console: Console, *, as_json: bool
) -> bool:
    """Prints; returns whether the worker is drained. Raises DrainError where it does not answer."""
    address = at or (_address_of(run, worker) if worker else _own_address())
    told = _ask("POST", address, "/drain")
    until = time.monotonic() + wait_s
    with console.status(f"waiting for what runs at {address}"):
        while told["status"] != DRAINED and time.monotonic() < until:
            time.sleep(LOOK_S)
            told = _ask("GET", address, "/health")
    if as_json:
        console.print_json(data=told | {"address": address})
    elif told["status"] == DRAINED:
        console.print(f"{told['service']} at {address} is drained: it may be stopped")
    else:
        console.print(f"[yellow]{told['service']} at {address} still works for somebody after {wait_s:g} s[/yellow]")
    return bool(told["status"] == DRAINED)


def _address_of(run: RunDirectory, worker: str) -> str:
    deployed = run.read()
    for record in deployed.processes if deployed else ():
        if record.name == worker and "http" in record.ports:
            return f"127.0.0.1:{record.ports['http']}"
    named = NAMED.fullmatch(worker)
    if named is None:
        known = [record.name for record in deployed.processes if "http" in record.ports] if deployed else []
        raise DrainError(f"no worker {worker!r} here{': there are ' if known else ''}{', '.join(known)}; or say --at")
    return f"{named['host']}:{named['port']}"


def _own_address() -> str:
    port = read_settings(ServiceSettings).http_port
    if not port:
        raise DrainError("which worker? Name it, say --at HOST:PORT, or run this where PDD_HTTP_PORT tells its port")
    return f"127.0.0.1:{port}"


def _ask(method: str, address: str, path: str) -> dict[str, Any]:
    try:
        answer = httpx.request(method, f"http://{address}{path}", timeout=PATIENCE_S, trust_env=False)
        answer.raise_for_status()
        return dict(answer.json())
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise DrainError(f"nothing that drains answers on {address}: {error}") from error


Worker = Annotated[str | None, typer.Argument(help="Its name, as `pdd status` shows it.")]
At = Annotated[str | None, typer.Option(help="HOST:PORT of its health, instead of a name.")]
Wait = Annotated[float, typer.Option(min=0, help="Seconds to wait for what runs there.")]
