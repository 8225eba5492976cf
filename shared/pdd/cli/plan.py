"""`pdd plan`: what to buy, from simulated fleets."""

from functools import partial
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

from ..core.errors import PddError
from ..core.ids import Role
from ..plan import bathtub as tubs
from ..plan import compare as comparing
from ..plan import elastic, lines, search, what_if
from ..plan import line_study as line_studies
from ..plan import runaway as runaways
from ..plan.capacity import load_of
from ..plan.fleet_of import fleet_plan
from ..plan.turns import Sample, cache_curve, samples
from ..sim.report.plot import line_plot
from ..sim.scenario import Scenario, ScenarioError, read_scenario, variant, with_trace
from .parallel import in_parallel

console = Console(highlight=False)
HITS = [i / 200 for i in range(200)] + [0.995]
CACHED_PRICES = (0.10, 0.25)
CACHES_TOKENS = [2.0**n * 1e5 for n in range(14)]
CURVE_SAMPLES = 4000


def plan(
    scenario: Annotated[Path, typer.Argument(help="A TOML file, for example loadgen/scenarios/paper.toml.")],
    compare: Annotated[bool, typer.Option("--compare", help="Side by side with other systems.")] = False,
    system: Annotated[list[str] | None, typer.Option(help="Of those compared only these; again for more.")] = None,
    fixed: Annotated[
        bool, typer.Option("--fixed", help="With --compare: under the scenario's load alone, no search.")
    ] = False,
    line_needed: Annotated[
        bool, typer.Option("--lines", help="The line that each system needs for the published one's P99.")
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="This trace's sessions instead of the scenario's.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="The most requests/s for this money, instead of the cheapest fleet.")
    ] = None,
    bathtub: Annotated[bool, typer.Option("--bathtub", help="Revenue per compute against hit rate.")] = False,
    varied: Annotated[
        list[str] | None, typer.Option("--what-if", help=f"Vary {', '.join(what_if.FACTORS)}; again for more.")
    ] = None,
    surge: Annotated[bool, typer.Option("--surge", help="Load doubles, workers join.")] = False,
    line_study: Annotated[bool, typer.Option("--line-study", help="Transports over the published line study.")] = False,
    runaway: Annotated[bool, typer.Option("--runaway", help="Why nothing may end on the relay.")] = False,
    rate: Annotated[float | None, typer.Option(help="Open loop with so many sessions a second.")] = None,
    seed: int = 7,
    duration: Annotated[float | None, typer.Option(help="Seconds of simulated time of each run.")] = None,
    precision: Annotated[float, typer.Option(help="Of a searched rate.")] = 0.02,
    jobs: Annotated[int, typer.Option(min=0, help="Runs at once; 0: one for each core.")] = 0,
    report: Annotated[Path | None, typer.Option(help="A folder for results and plots.")] = None,
) -> None:
    """Plan a fleet: without options the cheapest that keeps the scenario's promise at its rate."""
    work = _Work(scenario.parent, seed, jobs, report)
    try:
        found = _changed(read_scenario(scenario), trace, rate, duration)
        if line_needed:
            work.lines(found, system or [])
        elif compare:
            work.compare(found, system or [], precision, search=not fixed)
        elif bathtub:
            work.bathtub(found)
        elif varied:
            work.what_if(found, varied)
        elif surge:
            work.surge(found)
        elif line_study:
            work.line_study()
        elif runaway:
            work.runaway(found)
        else:
            work.search(found, budget)
    except PddError as error:
        console.print(f"[red]pdd:[/red] {error}", soft_wrap=True)
        raise typer.Exit(1) from None


def _changed(scenario: Scenario, trace: Path | None, rate: float | None, duration: float | None) -> Scenario:
    found = with_trace(scenario, trace) if trace else scenario
    if rate is not None:
        found = variant(found, {"load": {"rate_per_s": rate, "at_once": 0}})
    if duration is not None:
        warmup_s = min(found.load.warmup_s, duration / 2)
        found = variant(found, {"load": {"duration_s": duration, "warmup_s": warmup_s}})
    return found


def _chosen(scenario: Scenario, wanted: list[str]) -> dict[str, Scenario]:
    there = comparing.systems(scenario)
    if unknown := set(wanted) - set(there):
        raise ScenarioError(f"no system {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    return {name: one for name, one in there.items() if not wanted or name in wanted}


class _Work:
    """One command's folder, seed and processes. What is shown on the terminal is written to the folder too."""

    def __init__(self, base: Path, seed: int, jobs: int, report: Path | None) -> None:
        self.base, self.seed, self.jobs, self.report = base, seed, jobs, report

    def compare(self, scenario: Scenario, wanted: list[str], precision: float, *, search: bool) -> None:
        chosen = _chosen(scenario, wanted)
        work = {
            name: partial(comparing.row, one, self.seed, self.base, precision=precision, search=search)
            for name, one in chosen.items()
        }
        done = dict(in_parallel(work, self.jobs, console))
        rows = [done[name] for name in chosen]
        unit = "sessions at once" if scenario.load.closed else "requests/s" if scenario.load.hits else "sessions/s"
        table = Table(*comparing.HEAD, title=f"{scenario.name}, seed {self.seed}, {load_of(scenario):g} {unit}")
        found = comparing.lines(scenario, rows)
        for line in found:
            table.add_row(*line)
        console.print(table)
        self._write("compare.json", comparing.as_data(rows))
        self._write("compare.md", comparing.markdown(found))

    def lines(self, scenario: Scenario, wanted: list[str]) -> None:
        chosen = _chosen(scenario, wanted)
        work = {
            f"{name}, line x {factor:g}": partial(lines.spot, one, factor, self.seed, self.base)
            for name, one in chosen.items()
            for factor in lines.FACTORS
        }
        done = dict(in_parallel(work, self.jobs, console))
        points = {name: [done[f"{name}, line x {factor:g}"] for factor in lines.FACTORS] for name in chosen}
        found = {name: lines.waits(one, points[name]) for name, one in chosen.items()}
        published = found.get("PDD as published") or next(iter(found.values()))
        allowed_s = published[-1][1] * lines.SAME
        table = Table("second token P99, s", *(f"{line:g} Gbit/s" for line, _ in published), f"{allowed_s:.2f} s needs")
        for name, spots in found.items():
            least = lines.needed(spots, allowed_s)
            told = "more" if least is None else f"{least:g} Gbit/s"
            table.add_row(name, *(f"{wait:.2f}" for _, wait in spots), told)
        console.print(table)
        self._write("lines.json", lines.as_data(found, points))
        self._write("lines.svg", lines.plot(found))

    def search(self, scenario: Scenario, budget: float | None) -> None:
        table = Table("fleet", "cost", "requests/s", "2nd token p90", "per output p90", "BCR", "kept")

        def told(one: search.Tried) -> None:
            verdict = one.point.verdict
            cells = (
                f"{one.cost:.2f}",
                f"{one.point.rate_per_s:.2f}",
                f"{verdict.ttft_s:.1f} s",
                f"{verdict.tpot_s * 1000:.1f} ms",
            )
            table.add_row(str(one.size), *cells, f"{one.bcr:.4f}", "yes" if one.kept else verdict.binds)

        with console.status("simulating fleets"):
            if budget is None:
                found = search.cheapest(scenario, self.seed, self.base, told)
            else:
                found = search.best_for_budget(scenario, budget, self.seed, self.base, told)
        cut = found.cut
        console.print(
            f"first cut: P {cut.prefills} : RLD {cut.relays} : MD {cut.mains}, line {cut.line_gbit_s:.3g} Gbit/s, "
            f"{cut.batch} decodes a worker"
        )
        console.print(table)
        console.print(f"best: {found.best.size if found.best else 'none found'}; what binds: {found.binds}")
        self._write("plan.json", search.as_data(found))

    def bathtub(self, scenario: Scenario) -> None:
        fleet = fleet_plan(scenario)
        p = fleet.workers[Role.PREFILL]
        found = samples(scenario.load, self.seed, self.base, CURVE_SAMPLES)
        context = round(sum(one.prompt for one in found) / len(found))
        hit = sum(one.known for one in found) / sum(one.prompt for one in found)
        given = tubs.Tub(p.cost, context, p.limits.chunk_tokens * fleet.grain)
        lines = {
            f"cached at {price:.0%}, {tails}": tubs.tub(given, HITS, price, tails)
            for price in CACHED_PRICES
            for tails in ("own step", "merged and shared")
        }
        console.print(
            f"{context} tokens a prompt, chunks of {given.chunk_tokens}, hit rate of an endless cache {hit:.1%}"
        )
        for name, points in lines.items():
            low, value = tubs.bottom(points)
            here = next(value for at, value in points if at >= min(hit, HITS[-1]))
            console.print(f"  {name}: bottom {value:.2f} at {low:.0%}, here {here:.2f}")
        lines["published arithmetic"] = tubs.published(HITS)
        drawn = line_plot(
            "Revenue per compute over hit rate", lines, x="hit rate", y="of that without hits", log_y=True
        )
        self._write("bathtub.svg", drawn)
        if scenario.load.hits is None:
            self._caches(found)

    def _caches(self, found: list[Sample]) -> None:
        curve = list(zip(CACHES_TOKENS, cache_curve(found, CACHES_TOKENS), strict=True))
        for size, hit in curve:
            console.print(f"  a cache of {size:12,.0f} tokens: {hit:.1%} hit")
        self._write(
            "cache.svg", line_plot("Hit rate over cache", {"hit rate": curve}, x="tokens", y="hit rate", log_x=True)
        )

    def what_if(self, scenario: Scenario, varied: list[str]) -> None:
        if unknown := set(varied) - set(what_if.FACTORS):
            raise ScenarioError(f"--what-if: no {', '.join(sorted(unknown))}; there are {', '.join(what_if.FACTORS)}")
        work = {
            f"{what} x {factor:g}": partial(what_if.spot, scenario, what, factor, self.seed, self.base)
            for what in varied
            for factor in what_if.FACTORS[what]
        }
        done = dict(in_parallel(work, self.jobs, console))
        found = {what: [done[f"{what} x {factor:g}"] for factor in what_if.FACTORS[what]] for what in varied}
        for what, spots in found.items():
            for one in spots:
                console.print(
                    f"{what_if.UNITS[what]} {one.at:g}: second token P99 {what_if.p99(one.relayed):.2f} s with relay, "
                    f"{what_if.p99(one.plain):.2f} s without"
                )
            console.print(f"  the relay pays until {what_if.pays_until(spots)}")
            self._write(f"what_if_{what}.svg", what_if.plot(what, spots))
        self._write("what_if.json", what_if.as_data(found))

    def surge(self, scenario: Scenario) -> None:
        given = elastic.Surge()
        work = {
            name: partial(elastic.surge, scenario, given, self.seed, self.base, join=name == "join")
            for name in ("join", "alone")
        }
        done = dict(in_parallel(work, self.jobs, console))
        joined, alone = done["join"], done["alone"]
        for name, one in (("workers join", joined), ("nobody joins", alone)):
            recovered = "not within the run" if one.recovered_s is None else f"{one.recovered_s:.0f} s after"
            console.print(f"{name}: P90 before {one.before_s:.2f} s, worst {one.worst_s:.2f} s, as before {recovered}")
        if joined.first_work_s is not None:
            console.print(f"the first new worker computed {joined.first_work_s:.1f} s after it joined")
        self._write("surge.svg", elastic.plot(joined, alone))
        self._write("surge.json", elastic.as_data(joined, alone))

    def line_study(self) -> None:
        found = line_studies.whole(self.seed)
        table = Table("traffic", "transport", "p50 s", "p90 s", "p99 s", "p99.9 s", "line use")
        for cells in line_studies.as_rows(found):
            table.add_row(*cells)
        console.print(table)
        self._write("line_study.json", found)
        self._write("line_study.svg", line_studies.over_load(self.seed))

    def runaway(self, scenario: Scenario) -> None:
        work = {
            name: partial(runaways.over_time, scenario, router, self.seed, self.base)
            for name, router in runaways.ROUTERS.items()
        }
        done = dict(in_parallel(work, self.jobs, console))
        found = {name: done[name] for name in runaways.ROUTERS}
        for name, bins in found.items():
            last = bins[-1]
            console.print(
                f"{name}: at the end RLD wrote {last.relay_outputs:.0%} of the outputs, P's hit rate was {last.gap:+.0%} ahead, "
                f"second token P90 {last.second_token_p90_s:.1f} s"
            )
        for file, svg in runaways.plots(found).items():
            self._write(file, svg)
        self._write("runaway.json", runaways.as_data(found))

    def _write(self, name: str, content: object) -> None:
        """Text as it is, everything else as JSON."""
        if self.report is None:
            return
        self.report.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else orjson.dumps(content, option=orjson.OPT_INDENT_2)
        (self.report / name).write_bytes(data)
        console.print(f"written: {self.report / name}")
