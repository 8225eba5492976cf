"""`pdd plan`: what to buy, from simulated fleets."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..core.errors import PddError
from ..plan import compare as comparing
from ..sim.scenario import Scenario, read_scenario, variant

console = Console(highlight=False)
T = TypeVar("T")


def plan(
    scenario: Annotated[Path, typer.Argument(help="A TOML file, for example loadgen/scenarios/paper.toml.")],
    compare: Annotated[bool, typer.Option("--compare", help="Side by side with other systems.")] = False,
    system: Annotated[list[str] | None, typer.Option(help="Only these; again for more.")] = None,
    fixed: Annotated[
        bool, typer.Option("--fixed", help="With --compare: at the scenario's rate alone, no search.")
    ] = False,
    seed: int = 7,
    duration: Annotated[float | None, typer.Option(help="Seconds of simulated time of each run.")] = None,
    precision: Annotated[float, typer.Option(help="Of a searched rate.")] = 0.02,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at once; 0: one for each core.")] = 0,
    report: Annotated[Path | None, typer.Option(help="A folder for results and plots.")] = None,
) -> None:
    """Plan a fleet for a scenario."""
    try:
        found = _shortened(read_scenario(scenario), duration)
        if compare:
            _compare(found, system or [], seed, scenario.parent, precision, jobs, report, search=not fixed)
    except PddError as error:
        console.print(f"[red]pdd:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from None


def _shortened(scenario: Scenario, duration: float | None) -> Scenario:
    if duration is None:
        return scenario
    return variant(scenario, {"load": {"duration_s": duration, "warmup_s": min(scenario.load.warmup_s, duration / 2)}})


def _compare(
    scenario: Scenario,
    wanted: list[str],
    seed: int,
    base: Path,
    precision: float,
    jobs: int,
    report: Path | None,
    *,
    search: bool,
) -> None:
    chosen = {name: one for name, one in comparing.systems(scenario).items() if not wanted or name in wanted}
    work = {
        name: partial(comparing.row, one, seed, base, precision=precision, search=search)
        for name, one in chosen.items()
    }
    done = dict(in_parallel(work, jobs))
    rows = [done[name] for name in chosen]
    table = Table(*comparing.HEAD, title=f"{scenario.name}, seed {seed}, {scenario.load.rate_per_s:g} requests/s")
    for row in rows:
        table.add_row(*comparing.cells(row))
    console.print(table)
    if report:
        write(report, "compare.json", orjson.dumps(comparing.as_data(rows), option=orjson.OPT_INDENT_2))
        write(report, "compare.md", comparing.markdown(rows).encode())


def in_parallel(work: dict[str, Callable[[], T]], jobs: int) -> Iterator[tuple[str, T]]:
    """(name, result) as they come, each in a process of its own, with a bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    workers = min(jobs or os.cpu_count() or 1, len(work))
    with Progress(*columns, console=console, transient=True) as progress, ProcessPoolExecutor(workers) as pool:
        task = progress.add_task("simulating", total=len(work))
        running = {pool.submit(one): name for name, one in work.items()}
        for future in as_completed(running):
            progress.advance(task)
            yield running[future], future.result()


def write(folder: Path, name: str, content: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    console.print(f"written: {folder / name}")
