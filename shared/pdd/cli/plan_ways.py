"""The questions that `pdd plan` answers, a function each: simulate, show on the terminal, write to the report's folder."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import orjson
from rich.console import Console
from rich.table import Table

from ..core.ids import Role
from ..plan import bathtub as tubs
from ..plan import compare as comparing
from ..plan import elastic, what_if
from ..plan import line_study as line_studies
from ..plan import lines as line_needs
from ..plan import runaway as runaways
from ..plan import search as searching
from ..plan.capacity import load_of
from ..plan.fleet_of import fleet_plan
from ..plan.turns import Sample, cache_curve, samples
from ..sim.report.plot import line_plot
from ..sim.scenario import Scenario, ScenarioError
from .parallel import in_parallel

console = Console(highlight=False)
HITS = [i / 200 for i in range(200)] + [0.995]
CACHED_PRICES = (0.10, 0.25)
CACHES_TOKENS = [2.0**n * 1e5 for n in range(14)]
CURVE_SAMPLES = 4000
WIDE = 180  # columns
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Work:
    """One command's scenario, folder, seed and processes."""

    scenario: Scenario
    base: Path  # of the scenario's relative paths
    seed: int
    jobs: int
    report: Path | None

    def all(self, runs: Mapping[str, Callable[[], T]]) -> dict[str, T]:
        """The results, in the order of `runs`."""
        done = dict(in_parallel(runs, self.jobs, console))
        return {name: done[name] for name in runs}

    def write(self, name: str, content: object) -> None:
        """Text as it is, everything else as JSON."""
        if self.report is None:
            return
        self.report.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else orjson.dumps(content, option=orjson.OPT_INDENT_2)
        (self.report / name).write_bytes(data)
        console.print(f"written: {self.report / name}")


Answer = Callable[[Work], None]


def _chosen(scenario: Scenario, wanted: Sequence[str]) -> dict[str, Scenario]:
    there = comparing.systems(scenario)
    if unknown := set(wanted) - set(there):
        raise ScenarioError(f"no system {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    return {name: one for name, one in there.items() if not wanted or name in wanted}


def compare(work: Work, wanted: Sequence[str], precision: float, *, fixed: bool) -> None:
    scenario, seed = work.scenario, work.seed
    runs = {
        name: partial(comparing.row, one, seed, work.base, precision=precision, search=not fixed)
        for name, one in _chosen(scenario, wanted).items()
    }
    rows = list(work.all(runs).values())
    unit = "sessions at once" if scenario.load.closed else "requests/s" if scenario.load.hits else "sessions/s"
    found = comparing.lines(scenario, rows)
    console.print(f"{scenario.name}, seed {seed}, {load_of(scenario):g} {unit}")
    _tell_rows(found)
    work.write("compare.json", comparing.as_data(rows))
    work.write("compare.md", comparing.markdown(found))


def _tell_rows(found: Sequence[Sequence[str]]) -> None:
    """A table where the terminal has room for it, else one figure below the other."""
    if console.width >= WIDE:
        table = Table(*comparing.HEAD)
        for line in found:
            table.add_row(*line)
        console.print(table)
        return
    for name, *cells in found:
        console.print(name)
        for what, cell in zip(comparing.HEAD[1:], cells, strict=True):
            if cell != "-":
                console.print(f"    {what:24} {cell}")


def lines(work: Work, wanted: Sequence[str]) -> None:
    chosen = _chosen(work.scenario, wanted)
    runs = {
        (name, factor): partial(line_needs.spot, one, factor, work.seed, work.base)
        for name, one in chosen.items()
        for factor in line_needs.FACTORS
    }
    done = work.all({f"{name}, line x {factor:g}": run for (name, factor), run in runs.items()})
    points = {name: [done[f"{name}, line x {factor:g}"] for factor in line_needs.FACTORS] for name in chosen}
    found = {name: line_needs.waits(one, points[name]) for name, one in chosen.items()}
    published = found.get("PDD as published") or next(iter(found.values()))
    allowed_s = published[-1][1] * line_needs.SAME
    table = Table("second token P99, s", *(f"{line:g} Gbit/s" for line, _ in published), f"{allowed_s:.2f} s needs")
    for name, spots in found.items():
        least = line_needs.needed(spots, allowed_s)
        told = "more" if least is None else f"{least:g} Gbit/s"
        table.add_row(name, *(f"{wait:.2f}" for _, wait in spots), told)
    console.print(table)
    work.write("lines.json", line_needs.as_data(found, points))
    work.write("lines.svg", line_needs.plot(found))


def search(work: Work, budget: float | None) -> None:
    """Each fleet is told as soon as it was tried: a search takes minutes."""

    def told(one: searching.Tried) -> None:
        console.print(f"  {one}", soft_wrap=True)

    if budget is None:
        found = searching.cheapest(work.scenario, work.seed, work.base, told)
    else:
        found = searching.best_for_budget(work.scenario, budget, work.seed, work.base, told)
    console.print(f"the first cut was {found.cut}")
    console.print(f"best: {found.best or 'none found'}", soft_wrap=True)
    console.print(f"what binds: {found.binds}")
    work.write("plan.json", searching.as_data(found))


def bathtub(work: Work) -> None:
    fleet = fleet_plan(work.scenario)
    p = fleet.workers[Role.PREFILL]
    found = samples(work.scenario.load, work.seed, work.base, CURVE_SAMPLES)
    context = round(sum(one.prompt for one in found) / len(found))
    hit = sum(one.known for one in found) / sum(one.prompt for one in found)
    given = tubs.Tub(p.cost, context, p.limits.chunk_tokens * fleet.grain)
    curves = {
        f"cached at {price:.0%}, {tails}": tubs.tub(given, HITS, price, tails)
        for price in CACHED_PRICES
        for tails in ("own step", "merged and shared")
    }
    console.print(f"{context} tokens a prompt, chunks of {given.chunk_tokens}, hit rate of an endless cache {hit:.1%}")
    for name, points in curves.items():
        low, value = tubs.bottom(points)
        here = next(value for at, value in points if at >= min(hit, HITS[-1]))
        console.print(f"  {name}: bottom {value:.2f} at {low:.0%}, here {here:.2f}")
    curves["published arithmetic"] = tubs.published(HITS)
    title = "Revenue per compute over hit rate"
    work.write("bathtub.svg", line_plot(title, curves, x="hit rate", y="of that without hits", log_y=True))
    if work.scenario.load.hits is None:
        _caches(work, found)


def _caches(work: Work, found: list[Sample]) -> None:
    curve = list(zip(CACHES_TOKENS, cache_curve(found, CACHES_TOKENS), strict=True))
    for size, hit in curve:
        console.print(f"  a cache of {size:12,.0f} tokens: {hit:.1%} hit")
    drawn = line_plot("Hit rate over cache", {"hit rate": curve}, x="tokens", y="hit rate", log_x=True)
    work.write("cache.svg", drawn)


def vary(work: Work, varied: Sequence[str]) -> None:
    if unknown := set(varied) - set(what_if.FACTORS):
        raise ScenarioError(f"--what-if: no {', '.join(sorted(unknown))}; there are {', '.join(what_if.FACTORS)}")
    runs = {
        f"{what} x {factor:g}": partial(what_if.spot, work.scenario, what, factor, work.seed, work.base)
        for what in varied
        for factor in what_if.FACTORS[what]
    }
    done = work.all(runs)
    found = {what: [done[f"{what} x {factor:g}"] for factor in what_if.FACTORS[what]] for what in varied}
    for what, spots in found.items():
        for one in spots:
            console.print(
                f"{what_if.UNITS[what]} {one.at:g}: second token P99 {what_if.p99(one.relayed):.2f} s with relay, "
                f"{what_if.p99(one.plain):.2f} s without"
            )
        console.print(f"  the relay pays until {what_if.pays_until(spots)}")
        work.write(f"what_if_{what}.svg", what_if.plot(what, spots))
    work.write("what_if.json", what_if.as_data(found))


def surge(work: Work) -> None:
    given = elastic.Surge()
    runs = {
        name: partial(elastic.surge, work.scenario, given, work.seed, work.base, join=join)
        for name, join in (("workers join", True), ("nobody joins", False))
    }
    done = work.all(runs)
    for name, one in done.items():
        recovered = "not within the run" if one.recovered_s is None else f"{one.recovered_s:.0f} s after"
        console.print(f"{name}: P90 before {one.before_s:.2f} s, worst {one.worst_s:.2f} s, as before {recovered}")
    joined, alone = done.values()
    if joined.first_work_s is not None:
        console.print(f"the first new worker computed {joined.first_work_s:.1f} s after it joined")
    work.write("surge.svg", elastic.plot(joined, alone))
    work.write("surge.json", elastic.as_data(joined, alone))


def line_study(work: Work) -> None:
    found = line_studies.whole(work.seed)
    table = Table("traffic", "transport", "p50 s", "p90 s", "p99 s", "p99.9 s", "line use")
    for cells in line_studies.as_rows(found):
        table.add_row(*cells)
    console.print(table)
    work.write("line_study.json", found)
    work.write("line_study.svg", line_studies.over_load(work.seed))


def runaway(work: Work) -> None:
    runs = {
        name: partial(runaways.over_time, work.scenario, router, work.seed, work.base)
        for name, router in runaways.ROUTERS.items()
    }
    found = work.all(runs)
    for name, bins in found.items():
        last = bins[-1]
        console.print(
            f"{name}: at the end RLD wrote {last.relay_outputs:.0%} of the outputs, P's hit rate was {last.gap:+.0%} ahead, "
            f"second token P90 {last.second_token_p90_s:.1f} s"
        )
    for file, svg in runaways.plots(found).items():
        work.write(file, svg)
    work.write("runaway.json", runaways.as_data(found))
