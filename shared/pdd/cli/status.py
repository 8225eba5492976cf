"""`pdd status`: processes from the run directory, workers and measured lines from the router, the line's shape from the line."""

from typing import Any

from rich.console import Console
from rich.table import Table

from . import line as line_control
from .deployment import DeploymentError, router_status
from .processes import alive
from .run_directory import Deployed, RunDirectory


def show(run: RunDirectory, console: Console, *, as_json: bool) -> bool:
    """Prints; returns whether everything that was started is alive and serves."""
    status = gather(run)
    if as_json:
        console.print_json(data=status)
    elif not status["processes"]:
        console.print(f"nothing runs from {run.path}; `pdd up` starts it")
    else:
        _print(status, console)
    return bool(status["whole"])


def gather(run: RunDirectory) -> dict[str, Any]:
    deployed = run.read() or Deployed()
    processes = [
        {
            "name": record.name,
            "site": record.site,
            "pid": record.pid,
            "alive": alive(record),
            "ports": record.ports,
            "log": record.log,
        }
        for record in deployed.processes
    ]
    fleet = router_status(deployed.router) if deployed.router else None
    return {
        "whole": bool(processes) and fleet is not None and all(one["alive"] for one in processes),
        "api": f"http://{deployed.router}/v1" if deployed.router else None,
        "model": deployed.model,
        "logs": str(run.logs),
        "processes": processes,
        "fleet": fleet,
        "line": _shape(deployed),
    }


def _shape(deployed: Deployed) -> dict[str, Any] | None:
    try:
        return line_control.shape(deployed.line_control) if deployed.line_control else None
    except DeploymentError:
        return None


def _print(status: dict[str, Any], console: Console) -> None:
    console.print(f"API     {status['api']}\nmodel   {status['model']}", soft_wrap=True)
    workers = {worker["name"]: worker for worker in (status["fleet"] or {}).get("workers", [])}
    table = Table(box=None, pad_edge=False)
    for column in ("site", "process", "pid", "state", "running", "waiting", "pages free", "beat"):
        right = column in ("pid", "running", "waiting", "pages free")
        table.add_column(column, justify="right" if right else "left", no_wrap=True)
    for one in sorted(status["processes"], key=lambda one: one["site"]):
        table.add_row(*_row(one, workers.get(one["name"])))
    console.print(table)
    if status["line"]:
        console.print(f"line    {line_control.described(status['line'])}")
    for line in (status["fleet"] or {}).get("lines", []):
        rate, rtt = line["bytes_per_s"] * 8e-6, line["rtt_s"] * 1e3
        console.print(
            f"seen    from {line['from']} to site {line['to_site']}: {rate:.1f} Mbit/s, round trip {rtt:.0f} ms,"
            f" {line['queued_bytes']} bytes queued"
        )
    console.print(f"logs    {status['logs']}", soft_wrap=True)
    if status["fleet"] is None:
        console.print("[red]the router does not answer[/red]")


def _row(one: dict[str, Any], worker: dict[str, Any] | None) -> list[str]:
    state = "up" if one["alive"] else "[red]ended[/red]"
    if worker is None:
        return [one["site"], one["name"], str(one["pid"]), state, "", "", "", ""]
    if one["alive"] and not worker["alive"]:
        state = "[yellow]silent[/yellow]"
    if worker["draining"]:
        state = "draining"
    if worker.get("refused_for"):
        state = f"[red]refused: other {', '.join(worker['refused_for'])}[/red]"
    pages = f"{worker['pages_free']}/{worker['pages']}" if worker["pages"] else ""
    return [
        *(one["site"], one["name"], str(one["pid"]), state),
        *(
            str(worker["running"]),
            str(worker["waiting_tokens"]),
            pages,
            f"{worker['beat_s_ago']:.1f} s ago",
            one["log"],
        ),
    ]
