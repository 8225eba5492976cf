"""`python -m bench.fleet agreement|speed`."""

import tempfile
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from pdd.plan.fleet_of import fleet_plan
from pdd.sim.report import summarize
from pdd.sim.scenario import read_scenario

from . import agreement as agreeing
from . import speed as measuring
from .spoken import make_spoken_model

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
console = Console(highlight=False)
SCENARIOS = Path(__file__).resolve().parents[2] / "loadgen" / "scenarios"
Report = Annotated[Path | None, typer.Option(help="A file for the figures, as JSON.")]


@app.command()
def agreement(
    scenario: Path = SCENARIOS / "agreement.toml",
    seed: int = 7,
    runs: Annotated[int, typer.Option(min=1, help="So many seeds, from that one on.")] = 6,
    report: Report = None,
) -> None:
    """Play a scenario live and simulated, and compare."""
    found, base, seeds = read_scenario(scenario), scenario.parent, range(seed, seed + runs)
    plan = fleet_plan(found)
    with tempfile.TemporaryDirectory() as folder, console.status("playing live"):
        fleet = agreeing.live_fleet(found, plan, make_spoken_model(Path(folder) / "model"))
        live = summarize(agreeing.play_live(found, fleet, seeds, Path(folder) / "run", base))
    simulated = summarize(agreeing.play_simulated(found, plan, seeds, base))
    lines = agreeing.compared(live, simulated)
    table = Table("figure", "live", "simulated", "off", title=f"{found.name}: {live['requests']} requests")
    for line in lines:
        colour = "" if line.off <= agreeing.WITHIN else "[yellow]"
        table.add_row(line.name, f"{line.live:.4g}", f"{line.simulated:.4g}", f"{colour}{line.off:.1%}")
    console.print(table)
    console.print(
        f"routes live {live['routes']}, simulated {simulated['routes']}; failed {live['failed']} and {simulated['failed']}"
    )
    if report:
        data = {
            "lines": [[one.name, one.live, one.simulated, one.off] for one in lines],
            "live": live,
            "simulated": simulated,
        }
        report.write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))


@app.command()
def speed(
    scenario: Path = SCENARIOS / "paper.toml",
    seconds: Annotated[float, typer.Option(help="Simulated.")] = 60.0,
    seed: int = 7,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time goes, too.")] = False,
    report: Report = None,
) -> None:
    """Simulate for a while and say how fast that was, on one core."""
    found = read_scenario(scenario)
    figures = measuring.measured(found, seconds, seed, scenario.parent)
    for name, value in figures.items():
        console.print(f"{name:22} {value:,.4g}" if isinstance(value, float) else f"{name:22} {value:,}")
    if profile:
        console.print(measuring.profiled(found, seconds, seed, scenario.parent))
    if report:
        report.write_bytes(orjson.dumps(figures, option=orjson.OPT_INDENT_2))


app()
