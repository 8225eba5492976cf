"""`pdd storms`: random fault schedules over whole deployments in virtual time, the laws of the protocol checked after every event.

Prints what happened, what never did, and for each seed that breaks a law the shortest schedule that still breaks it.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from ..plan.coverage import Coverage
from ..plan.seeds import Outcome, outcomes, shrunk, told
from ..plan.stages import Stage

SHRUNK_MAX = 3  # failing seeds whose story is told
WIDTH = 120  # what the table of faults and stages needs


def storms(
    n: Annotated[int, typer.Option("--n", min=1, help="How many seeds.")] = 1000,
    start: Annotated[int, typer.Option(min=0, help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes.")] = 2,
    rows: Annotated[bool, typer.Option("--rows", help="Name every transition row that was never taken.")] = False,
) -> None:
    """Try random fault schedules against the protocol. Exit status 1 when a law was broken."""
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    counts: Counter[str] = Counter()
    coverage, failed = Coverage(), list[Outcome]()
    with _progress(console) as progress:
        task = progress.add_task("", total=n, failed=0)
        for one in outcomes(range(start, start + n), jobs):
            counts.update(one.counts)
            coverage.add(one.coverage)
            if one.law:
                failed.append(one)
            progress.update(task, advance=1, failed=len(failed))
    _print_counts(console, counts)
    _print_faults(console, coverage)
    _print_rows(console, coverage, by_name=rows)
    for one in failed[:SHRUNK_MAX]:
        _print_failure(console, one)
    console.print(f"{n} seeds, {_broken(failed)}")
    raise typer.Exit(1 if failed else 0)


def _progress(console: Console) -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[failed]} broken"))
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True)


def _broken(failed: list[Outcome]) -> str:
    if not failed:
        return "every law held"
    laws = ", ".join(f"{law} ({count})" for law, count in Counter(one.law for one in failed).most_common())
    return f"[red]{len(failed)} broke a law: {laws}; first seeds {[one.seed for one in failed[:10]]}[/red]"


def _print_counts(console: Console, counts: Counter[str]) -> None:
    ends = [(name.removeprefix("end: "), count) for name, count in counts.most_common() if name.startswith("end: ")]
    console.print(f"{counts['submit']} requests, {counts['events']} events")
    console.print("ends: " + ", ".join(f"{name} {count}" for name, count in ends))


def _print_faults(console: Console, coverage: Coverage) -> None:
    """How often each fault met a request at each stage."""
    table = Table(box=None, pad_edge=False, title="faults by the stage they met", title_justify="left")
    table.add_column("fault", no_wrap=True)
    for met in Stage:
        table.add_column(met.name.lower().replace("_", " "), justify="right")
    kinds = _kinds(coverage.faults)
    for kind in kinds:
        cells = [coverage.faults[kind, met] for met in Stage]
        table.add_row(kind, *(str(cell) if cell else "[yellow]-[/yellow]" for cell in cells))
    console.print(table)


def _kinds(faults: Iterable[tuple[str, Stage]]) -> list[str]:
    return sorted({kind for kind, _ in faults})


def _print_rows(console: Console, coverage: Coverage, *, by_name: bool) -> None:
    untaken, late = coverage.untaken(), coverage.untaken(late=True)
    console.print(f"transition rows taken: {coverage.taken()} of {coverage.taken() + len(untaken) + len(late)}")
    console.print(f"never taken: {len(untaken)} that act, {len(late)} that only let a late event pass")
    for role, phase, kind in [*untaken, *late] if by_name else untaken:
        console.print(f"  {role} {phase} {kind}")


def _print_failure(console: Console, failed: Outcome) -> None:
    console.rule(f"seed {failed.seed}: {failed.text}", align="left")
    console.print("\n".join(failed.story), markup=False)
    short, without = shrunk(failed)
    console.print(f"[bold]shrunk[/bold] to {len(short.entries)} of {len(failed.entries)} entries: {short.text}")
    console.print(told(short, without), markup=False, soft_wrap=True)
