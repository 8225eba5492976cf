"""`pdd status --router`: the fleet as one router hears it, wherever it was started."""

from typing import Any

from rich.console import Console
from rich.table import Table

from .deployment import DeploymentError, router_status

COLUMNS = ("site", "worker", "state", "running", "waiting", "pages free", "beat")
NEEDED = ("prefill", "main_decode")


def show_fleet(router: str, console: Console, *, as_json: bool) -> bool:
    """Prints; returns whether a request can be served: somebody prefills, somebody decodes. DeploymentError without a router."""
    status = router_status(router)
    if status is None:
        raise DeploymentError(f"no router answers on {router}")
    if as_json:
        console.print_json(data=status)
    else:
        _print(status, console)
    able = [one for one in status["workers"] if one["alive"] and not one["draining"] and not one.get("refused_for")]
    serving = {worker["role"] for worker in able}
    return all(role in serving for role in NEEDED)


def _print(status: dict[str, Any], console: Console) -> None:
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        right = column in ("running", "waiting", "pages free")
        table.add_column(column, justify="right" if right else "left", overflow="fold")  # a name is for typing
    for worker in sorted(status["workers"], key=lambda worker: (worker["site"], worker["name"])):
        table.add_row(*_row(worker))
    console.print(table)
    for line in status["lines"]:
        rate, rtt = line["bytes_per_s"] * 8e-6, line["rtt_s"] * 1e3
        console.print(f"line    {line['from']} to site {line['to_site']}: {rate:.1f} Mbit/s, round trip {rtt:.0f} ms")
    console.print(f"router  {status['router']['name']}: {status['router']['requests']} requests under way")


def _row(worker: dict[str, Any]) -> tuple[str, ...]:
    if worker["alive"]:
        state = "draining" if worker["draining"] else "up"
    else:
        state = "gone" if worker["draining"] else "[red]silent[/red]"
    if worker.get("refused_for"):
        state = f"[red]refused: other {', '.join(worker['refused_for'])}[/red]"
    pages = f"{worker['pages_free']}/{worker['pages']}" if worker["pages"] else ""
    busy = (str(worker["running"]), str(worker["waiting_tokens"]), pages)
    return (worker["site"], worker["name"], state, *busy, f"{worker['beat_s_ago']:.1f} s ago")
