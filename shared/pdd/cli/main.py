"""The `pdd` command: run both sites on this machine, look at them, shape the line between them, end them."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..core.errors import PddError
from ..runtime.settings import LocalSettings, read_settings
from .deployment import end_deployed
from .doctor import doctor as look
from .drain import At, Wait, Worker
from .drain import drain as drain_worker
from .fleet import ROOT, ROUTER_PORT, Engine, Fleet, Line
from .fleet_status import show_fleet
from .line import address, change, described
from .link import show_link
from .plan import plan
from .provide import model
from .run_directory import RunDirectory
from .serve import serve
from .sim import sim
from .status import show
from .storms import storms
from .trace import show_trace

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
console = Console(highlight=False)

app.command()(model)
app.command()(plan)
app.command()(sim)
app.command()(storms)

RunDir = Annotated[Path | None, typer.Option("--run-dir", help="Where this deployment's records and logs lie.")]


@app.command()
def up(
    port: Annotated[int, typer.Option(help="The OpenAI API's port; 0: any free one.")] = ROUTER_PORT,
    model: Annotated[
        Path | None, typer.Option(help="A Hugging Face folder. Default: the demo model, made once.")
    ] = None,
    engine: Annotated[Engine, typer.Option(help="scripted: no weights, invented tokens.")] = Engine.TORCH,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16, of weights and KV.")] = "float32",
    prefill: Annotated[int, typer.Option(min=1, help="P workers at site A.")] = 1,
    relay: Annotated[int, typer.Option(min=0, help="RLD workers at site A.")] = 1,
    main: Annotated[int, typer.Option(min=1, help="MD workers at site B.")] = 1,
    rate_mbit: Annotated[float, typer.Option(min=0.01, help="The line's rate, each way.")] = Line().rate_mbit,
    delay_ms: Annotated[float, typer.Option(min=0, help="The line's delay, one way.")] = Line().delay_ms,
    redis_url: Annotated[str, typer.Option(help="A Redis 7+ or Valkey to use; default: one of our own.")] = "",
    detach: Annotated[bool, typer.Option("--detach", help="Return when ready; `pdd down` ends it.")] = False,
    run_dir: RunDir = None,
) -> None:
    """Serve both sites on this machine until Ctrl-C."""
    fleet = Fleet(
        model_dir=model,
        engine=engine,
        dtype=dtype,
        prefill=prefill,
        relay=relay,
        main=main,
        router_port=port,
        line=Line(rate_mbit, delay_ms),
        redis_url=redis_url,
    )
    with _told_plainly():
        serve(fleet, _run_directory(run_dir), _local().cache_dir, console, detach=detach)


@app.command()
def down(run_dir: RunDir = None) -> None:
    """End exactly what `pdd up` started."""
    with _told_plainly():
        run = _run_directory(run_dir)
        count = len(run.running())
        killed = end_deployed(run)
        console.print(f"ended {count} processes" if count else "nothing was running")
        if killed:
            console.print(f"[yellow]did not end when asked, and were killed: {', '.join(killed)}[/yellow]")


@app.command()
def status(
    router: Annotated[
        str | None, typer.Option(help="HOST:PORT of a router to ask, instead of what `pdd up` started.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    run_dir: RunDir = None,
) -> None:
    """Show sites, workers and line. Exit status 1 when nothing runs or something is missing."""
    with _told_plainly():
        run = _run_directory(run_dir)
        whole = show_fleet(router, console, as_json=json) if router else show(run, console, as_json=json)
    if not whole:
        raise typer.Exit(1)


@app.command()
def line(
    rate_mbit: Annotated[float | None, typer.Option(min=0.01, help="Megabits per second, each way.")] = None,
    delay_ms: Annotated[float | None, typer.Option(min=0, help="Milliseconds, one way.")] = None,
    stall: Annotated[bool | None, typer.Option("--stall/--flow", help="Hold all bytes; connections stay.")] = None,
    cut: Annotated[bool | None, typer.Option("--cut/--join", help="Reset connections and refuse new ones.")] = None,
    run_dir: RunDir = None,
) -> None:
    """Change the line between the sites while they run; without options, show its shape."""
    with _told_plainly():
        control = address(_run_directory(run_dir))
        console.print(described(change(control, rate_mbit=rate_mbit, delay_ms=delay_ms, stall=stall, cut=cut)))


@app.command()
def link(
    at: Annotated[list[str] | None, typer.Option(help="HOST:PORT of a process's metrics; may be repeated.")] = None,
    once: Annotated[bool, typer.Option("--once", help="One look instead of a live view.")] = False,
    json: Annotated[bool, typer.Option("--json", help="For programs; one look.")] = False,
    run_dir: RunDir = None,
) -> None:
    """Watch KV crossing: rate, round trip, queue, loss, streams, packing, and what receivers refuse. Ctrl-C ends it."""
    with _told_plainly():
        show_link(_run_directory(run_dir), at or [], console, once=once, as_json=json)


@app.command()
def trace(
    request: Annotated[str, typer.Argument(help="The answer's id, its x-request-id, or a trace id.")],
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    run_dir: RunDir = None,
) -> None:
    """Show where one request's time went, over all services of both sites. They remember the last few hundred requests."""
    with _told_plainly():
        show_trace(_run_directory(run_dir), request, console, as_json=json)


@app.command()
def doctor(
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    run_dir: RunDir = None,
) -> None:
    """Look at broker, Redis, certificates, clocks, workers, model and line, and say what to do. Exit status 1 when something fails."""
    with _told_plainly():
        whole = look(_run_directory(run_dir), console, as_json=json)
    if not whole:
        raise typer.Exit(1)


@app.command()
def drain(
    worker: Worker = None,
    at: At = None,
    wait: Wait = 60.0,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    run_dir: RunDir = None,
) -> None:
    """Let a worker end what it has and take nothing new. Exit status 1 when something still runs there."""
    with _told_plainly():
        drained = drain_worker(_run_directory(run_dir), worker, at, wait, console, as_json=json)
    if not drained:
        raise typer.Exit(1)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def demo(context: typer.Context) -> None:
    """Play an agent conversation across both sites and check every token against one engine alone."""
    command = [sys.executable, "-m", "loadgen.demo", *context.args]
    raise typer.Exit(subprocess.run(command, cwd=ROOT, check=False).returncode)


def _local() -> LocalSettings:
    return read_settings(LocalSettings)


def _run_directory(given: Path | None) -> RunDirectory:
    return RunDirectory(given or _local().run_dir)


@contextlib.contextmanager
def _told_plainly() -> Iterator[None]:
    """What goes wrong for a known reason ends the command with that reason, not with a stack."""
    try:
        yield
    except PddError as error:
        console.print(f"[red]pdd:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from None
