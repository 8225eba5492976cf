"""`pdd plan`: what to buy, from simulated fleets."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import PddError
from ..plan.what_if import FACTORS
from ..sim.scenario import Scenario, ScenarioError, read_scenario, variant, with_trace
from . import plan_ways as ways

SCENARIO = typer.Argument(help="A TOML file, for example loadgen/scenarios/paper.toml.")
COMPARE = typer.Option("--compare", help="Side by side with other systems.")
SYSTEM = typer.Option(help="Of those compared only these; again for more.")
FIXED = typer.Option("--fixed", help="With --compare: under the scenario's load alone, no search.")
LINES = typer.Option("--lines", help="The line that each system needs for the published one's P99.")
TRACE = typer.Option(help="This trace's sessions instead of the scenario's.")
BUDGET = typer.Option(help="The most requests/s for this money, instead of the cheapest fleet.")
BATHTUB = typer.Option("--bathtub", help="Revenue per compute against hit rate.")
WHAT_IF = typer.Option("--what-if", help=f"Vary {', '.join(FACTORS)}; again for more.")
SURGE = typer.Option("--surge", help="Load doubles, workers join.")
LINE_STUDY = typer.Option("--line-study", help="Transports over the published line study.")
RUNAWAY = typer.Option("--runaway", help="Why nothing may end on the relay.")
RATE = typer.Option(help="Open loop with so many sessions a second.")
DURATION = typer.Option(help="Seconds of simulated time of each run.")
PRECISION = typer.Option(help="Of a searched rate.")
JOBS = typer.Option(min=0, help="Runs at once; 0: one for each core.")
REPORT = typer.Option(help="A folder for results and plots.")


def plan(
    scenario: Annotated[Path, SCENARIO],
    compare: Annotated[bool, COMPARE] = False,
    system: Annotated[list[str] | None, SYSTEM] = None,
    fixed: Annotated[bool, FIXED] = False,
    line_needed: Annotated[bool, LINES] = False,
    trace: Annotated[Path | None, TRACE] = None,
    budget: Annotated[float | None, BUDGET] = None,
    bathtub: Annotated[bool, BATHTUB] = False,
    varied: Annotated[list[str] | None, WHAT_IF] = None,
    surge: Annotated[bool, SURGE] = False,
    line_study: Annotated[bool, LINE_STUDY] = False,
    runaway: Annotated[bool, RUNAWAY] = False,
    rate: Annotated[float | None, RATE] = None,
    seed: int = 7,
    duration: Annotated[float | None, DURATION] = None,
    precision: Annotated[float, PRECISION] = 0.02,
    jobs: Annotated[int, JOBS] = 0,
    report: Annotated[Path | None, REPORT] = None,
) -> None:
    """Plan a fleet: without options the cheapest that keeps the scenario's promise at its rate."""
    questions: dict[str, tuple[object, ways.Answer]] = {
        "--compare": (compare, partial(ways.compare, wanted=system or [], precision=precision, fixed=fixed)),
        "--lines": (line_needed, partial(ways.lines, wanted=system or [])),
        "--bathtub": (bathtub, ways.bathtub),
        "--what-if": (varied, partial(ways.vary, varied=varied or [])),
        "--surge": (surge, ways.surge),
        "--line-study": (line_study, ways.line_study),
        "--runaway": (runaway, ways.runaway),
    }
    asked = {name: answer for name, (wanted, answer) in questions.items() if wanted}
    try:
        if len(asked) > 1:
            raise ScenarioError(f"one question at a time: {' or '.join(asked)}")
        if asked and budget is not None:
            raise ScenarioError(f"--budget looks for a fleet by itself: not with {' or '.join(asked)}")
        found = _changed(read_scenario(scenario), trace, rate, duration)
        (answer,) = asked.values() or [partial(ways.search, budget=budget)]
        answer(ways.Work(found, scenario.parent, seed, jobs, report))
    except PddError as error:
        ways.console.print(f"[red]pdd:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from None


def _changed(scenario: Scenario, trace: Path | None, rate: float | None, duration: float | None) -> Scenario:
    found = with_trace(scenario, trace) if trace else scenario
    if rate is not None:
        found = variant(found, {"load": {"rate_per_s": rate, "at_once": 0}})
    if duration is not None:
        warmup_s = min(found.load.warmup_s, duration / 2)
        found = variant(found, {"load": {"duration_s": duration, "warmup_s": warmup_s}})
    return found
