"""Load on any OpenAI-compatible server, as agents make it: `python -m loadgen --scenario agent --report out/`."""

import asyncio
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import httpx
import orjson
import typer
from rich.console import Console

from pdd.core.errors import PddError
from pdd.sim.report import Run, summarize
from pdd.sim.report.page import page
from pdd.sim.scenario import Scenario, ScenarioError, read_scenario, variant, with_trace
from pdd.sim.workload import Load

from .client import Client
from .drive import Player
from .live import Watch
from .target import PromptKind, Target, find_target

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
SCENARIOS = Path(__file__).parent / "scenarios"
CONNECT_S = 10.0
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@app.command()
def main(
    scenario: Annotated[str, typer.Option(help="A name from loadgen/scenarios, or a TOML file.")] = "agent",
    target: Annotated[str, typer.Option(help="The server's address, without /v1.")] = "http://127.0.0.1:8000",
    report: Annotated[Path | None, typer.Option(help="A folder for report.json and report.html.")] = None,
    seed: int = 7,
    model: Annotated[str, typer.Option(help="Default: the first that the server lists.")] = "",
    prompt: Annotated[
        PromptKind, typer.Option(help="How prompts are sent; auto: ids where the server takes them.")
    ] = PromptKind.AUTO,
    plain: Annotated[
        bool, typer.Option("--plain", help="Send OpenAI's own fields alone: answers end where they end.")
    ] = False,
    at_once: Annotated[int | None, typer.Option(help="Closed loop with so many sessions.")] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop with so many sessions a second.")] = None,
    sessions: Annotated[int | None, typer.Option(help="So many in all.")] = None,
    duration: Annotated[float | None, typer.Option(help="Seconds after which nothing new begins.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Replay this trace instead of the scenario's.")] = None,
    silence: Annotated[float, typer.Option(help="Seconds without a byte after which a request has failed.")] = 60.0,
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", show_default=False)] = "",
    title: Annotated[str, typer.Option(help="The run's name in the report.")] = "",
) -> None:
    """Play a scenario's sessions against a server and report what its clients saw."""
    console = Console(highlight=False)
    changes = {"at_once": at_once, "rate_per_s": rate, "sessions": sessions, "duration_s": duration}
    try:
        found, base = _scenario(scenario, {key: value for key, value in changes.items() if value is not None}, trace)
        with console.status("reading the trace"):
            _check_trace(found.load, seed, base)
        http = _http(target, silence, api_key)
        run = asyncio.run(
            _run(http, target.rstrip("/"), model, prompt, found, base, seed, console, exact_length=not plain)
        )
        run.title = title or run.title
        _tell(run, report, console)
    except (PddError, ExceptionGroup) as error:
        for known in _known(error):
            console.print(f"[red]loadgen:[/red] {known}", soft_wrap=True)
        raise typer.Exit(1) from None


def _known(error: Exception) -> list[PddError]:
    """What went wrong for a known reason. Anything else is a mistake of ours, and is raised."""
    if isinstance(error, PddError):
        return [error]
    if isinstance(error, ExceptionGroup):
        return [known for one in error.exceptions for known in _known(one)]
    raise error


def _scenario(name: str, changes: dict[str, float], trace: Path | None) -> tuple[Scenario, Path]:
    """The scenario with the command's changes, and what its paths are relative to."""
    path = Path(name) if name.endswith(".toml") else SCENARIOS / f"{name}.toml"
    if not path.exists() and path.parent == SCENARIOS:
        known = ", ".join(sorted(found.stem for found in SCENARIOS.glob("*.toml")))
        raise ScenarioError(f"no scenario {name!r}; there are {known}, or give a .toml file")
    found = read_scenario(path)
    if trace:
        found = with_trace(found, trace)
    if "rate_per_s" in changes:
        changes = {"at_once": 0} | changes
    if "at_once" in changes:
        changes = {"rate_per_s": 0.0} | changes
    return variant(found, {"load": changes}), path.parent


def _check_trace(load: Load, seed: int, base: Path) -> None:
    """A malformed line is told before anything is sent."""
    if load.trace:
        for _ in load.timed(seed, base):
            pass


def _http(target: str, silence_s: float, api_key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        timeout=httpx.Timeout(silence_s, connect=CONNECT_S, pool=None),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
        headers={"authorization": f"Bearer {api_key}"} if api_key else {},
        trust_env=urlsplit(target).hostname not in LOOPBACK,
    )


async def _run(
    http: httpx.AsyncClient,
    url: str,
    model: str,
    kind: PromptKind,
    scenario: Scenario,
    base: Path,
    seed: int,
    console: Console,
    *,
    exact_length: bool,
) -> Run:
    async with http:
        target = await find_target(http, url, model, kind, exact_length=exact_length)
        console.print(f"{url}: {target.model}, prompts as {target.kind}")
        run = Run(scenario.name, warmup_s=scenario.load.warmup_s, facts=_facts(target, scenario, seed))
        watch = Watch(console)
        client = Client(http, target, run.gaps, scenario.load.max_tokens, watch.saw)
        player = Player(client, scenario.load, run, watch.took)
        shown = asyncio.create_task(watch.show(client.now, lambda: player.under_way))
        try:
            client.restart_clock()
            await player.play(scenario.load.timed(seed, base))
            run.seconds = client.now()
        finally:
            shown.cancel()
        return run


def _facts(target: Target, scenario: Scenario, seed: int) -> dict[str, str | int | float]:
    load = scenario.load
    loop = f"closed, {load.at_once} at once" if load.closed else f"open, {load.rate_per_s or 'recorded'} sessions/s"
    return {"target": target.url, "model": target.model, "prompts": target.kind.value, "loop": loop, "seed": seed}


def _tell(run: Run, folder: Path | None, console: Console) -> None:
    found = summarize(run)
    console.print(_short(found), soft_wrap=True)
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_bytes(orjson.dumps(found | {"records": run.records}, option=orjson.OPT_INDENT_2))
        (folder / "report.html").write_text(page(run.title, [run]))
        console.print(f"written: {folder / 'report.json'} and report.html")


def _short(found: dict[str, object]) -> str:
    kept = (
        "requests",
        "failed",
        "errors",
        "completed_per_s",
        "outputs_per_s",
        "ttft_s",
        "second_token_s",
        "itl_s",
        "largest_gap_s",
    )
    rest = ("session_s", "hit", "routes", "shares", "line")
    lines = [f"{key:16} {_value(found[key])}" for key in (*kept, *rest) if found.get(key)]
    return "\n".join(lines)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{key} {_value(one)}" for key, one in value.items() if key not in ("n", "bins"))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    app()
