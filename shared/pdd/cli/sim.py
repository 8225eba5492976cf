"""`pdd sim`: a scenario's fleet in virtual time, and what its clients would see."""

from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..core.errors import PddError
from ..plan.fleet_of import fleet_of
from ..sim.report import Run, summarize
from ..sim.report.page import TIMES, page, seconds
from ..sim.scenario import Scenario, ScenarioError, read_scenario, variant

console = Console(highlight=False)
COLUMNS = ("mean", "p50", "p90", "p99", "max")


def sim(
    scenario: Annotated[Path, typer.Argument(help="A TOML file, for example of loadgen/scenarios.")],
    seed: int = 7,
    system: Annotated[str, typer.Option(help="One of the scenario's [systems]; default: the scenario itself.")] = "",
    duration: Annotated[float | None, typer.Option(help="Seconds of simulated time in which requests begin.")] = None,
    rate: Annotated[float | None, typer.Option(help="Sessions a second.")] = None,
    report: Annotated[Path | None, typer.Option(help="A folder for report.json and report.html.")] = None,
) -> None:
    """Simulate a scenario's fleet: the machines that serve, in virtual time."""
    try:
        found = chosen(read_scenario(scenario), system)
        changes = {"duration_s": duration, "rate_per_s": rate}
        found = variant(found, {"load": {key: value for key, value in changes.items() if value is not None}})
        if duration and found.load.warmup_s > duration / 2:
            found = variant(found, {"load": {"warmup_s": duration / 2}})
        run = simulate(found, seed, scenario.parent, system or found.name)
    except PddError as error:
        console.print(f"[red]pdd:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from None
    found_numbers = summarize(run)
    show(found_numbers)
    if report:
        report.mkdir(parents=True, exist_ok=True)
        (report / "report.json").write_bytes(
            orjson.dumps(found_numbers | {"records": run.records}, option=orjson.OPT_INDENT_2)
        )
        (report / "report.html").write_text(page(run.title, [run]))
        console.print(f"written: {report / 'report.json'} and report.html")


def chosen(scenario: Scenario, system: str) -> Scenario:
    if not system:
        return scenario
    if system not in scenario.systems:
        raise ScenarioError(f"{scenario.name}: no system {system!r}; there are {', '.join(scenario.systems) or 'none'}")
    return variant(scenario, scenario.systems[system])


def simulate(scenario: Scenario, seed: int, base: Path, title: str) -> Run:
    """With a progress bar on the terminal."""
    fleet = fleet_of(scenario, seed, title)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[told]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=scenario.load.duration_s or None, told="")

        def told(now: float, under_way: int) -> None:
            progress.update(task, completed=now, told=f"{now:.0f} s, {under_way} under way, {fleet.events:,} events")

        return fleet.run(base, told)


def show(found: dict[str, Any]) -> None:
    console.print(
        f"{found['title']}: {found['requests']} requests, {found['failed']} failed, {found['completed_per_s']:.2f} requests/s, "
        f"{found['outputs_per_s']:.0f} tokens/s"
    )
    for error, count in found["errors"].items():
        console.print(f"  [red]{count} x {error}[/red]")
    table = Table()
    table.add_column("time")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for key, said in TIMES.items():
        if values := found[key]:
            table.add_row(said, *(seconds(values.get(column)) for column in COLUMNS))
    console.print(table)
    for key in ("hit", "routes", "shares", "line", "facts"):
        if found[key]:
            console.print(f"{key:7} {_flat(found[key])}", soft_wrap=True)


def _flat(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
        if not isinstance(value, dict)
    )
