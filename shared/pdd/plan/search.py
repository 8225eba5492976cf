"""The cheapest fleet that keeps a promise, or the one that serves most for a budget: a first cut, then simulated neighbours.

Each step changes one thing: a worker of one role, or the line by a quarter. What binds says what to add; what is idle, what to take.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..sim.scenario import Scenario, variant
from .capacity import Point, capacity, load_of, under
from .first_cut import FirstCut, first_cut
from .turns import samples
from .worth import cost

SAMPLES = 3000
RUNS_MOST = 24
LINE_STEPS_GBIT_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 40, 100, 200, 400)
LINE_FULL = 0.85
PRECISION = 0.03  # of a rate


@dataclass(frozen=True, slots=True)
class Size:
    """What is searched over."""

    prefills: int
    relays: int
    mains: int
    line_gbit_s: float

    def of(self, scenario: Scenario) -> Scenario:
        fleet = {
            "prefill": {"workers": self.prefills},
            "relay": {"workers": self.relays},
            "main": {"workers": self.mains},
        }
        return variant(scenario, {"fleet": fleet, "line": {"gbit_s": self.line_gbit_s}})

    def within(self, other: "Size") -> bool:
        return all(mine <= theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True))

    def __str__(self) -> str:
        return f"P {self.prefills} : RLD {self.relays} : MD {self.mains}, {self.line_gbit_s:g} Gbit/s"


@dataclass(frozen=True, slots=True)
class Tried:
    size: Size
    cost: float
    point: Point

    @property
    def kept(self) -> bool:
        return self.point.verdict.kept

    @property
    def bcr(self) -> float:
        return self.point.rate_per_s / self.cost

    def __str__(self) -> str:
        verdict = self.point.verdict
        waits = f"P90 {verdict.ttft_s:.1f} s to token and {verdict.tpot_s * 1000:.1f} ms per output"
        judged = "kept" if self.kept else f"broken by {verdict.binds}"
        return f"{self.size}: cost {self.cost:.2f}, {self.point.rate_per_s:.2f} requests/s, {waits}, BCR {self.bcr:.4f}, {judged}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`best` is None where nothing tried keeps the promise. `binds`: what broke when the last thing was taken away."""

    cut: FirstCut
    tried: list[Tried]
    best: Tried | None
    binds: str


Told = Callable[[Tried], None]


def _silent(tried: Tried) -> None: ...


def cheapest(scenario: Scenario, seed: int, base: Path, told: Told = _silent) -> Plan:
    """At the scenario's rate."""
    cut = first_cut(scenario, samples(scenario.load, seed, base, SAMPLES))
    size = Size(cut.prefills, cut.relays, cut.mains, _line(cut.line_gbit_s))
    search = _Search(scenario, seed, base, told)
    here = search.try_size(size)
    while not here.kept and search.runs_left:
        here = search.try_size(_more(here))
    binds = here.point.verdict.binds
    while here.kept and search.runs_left:
        less = (search.try_size(size) for size in _less(here.size) if not search.hopeless(size))
        smaller = next((one for one in less if one.kept or not search.runs_left), None)
        if smaller is None or not smaller.kept:
            break
        here = smaller
    if broken := [t for t in search.tried if not t.kept and t.size != here.size]:
        binds = f"{broken[-1].point.verdict.binds} (with {broken[-1].size})"
    return Plan(cut, search.tried, here if here.kept else None, binds)


def best_for_budget(scenario: Scenario, budget: float, seed: int, base: Path, told: Told = _silent) -> Plan:
    """The best BCR within the promise for `budget`: money shifted between P and MD around the first cut's ratio, with relays and without.

    Whoever does not keep the promise under the load that would make it the best is out after that one run.
    """
    cut = first_cut(scenario, samples(scenario.load, seed, base, SAMPLES))
    tried: list[Tried] = []
    best: Tried | None = None  # of those that keep it
    for size in dict.fromkeys(_sizes(scenario, cut, budget)):
        sized = size.of(scenario)
        price = cost(sized)
        first = best.point.load / best.cost * price * (1 + PRECISION) if best else load_of(scenario)
        here = under(sized, first, seed, base)
        if here.verdict.kept or not best:
            here = capacity(sized, seed, base, first=first, precision=PRECISION, known=here) or here
        tried.append(Tried(size, price, here))
        told(tried[-1])
        best = tried[-1] if tried[-1].kept else best
    return Plan(cut, tried, best, best.point.verdict.binds if best else "budget")


def _sizes(scenario: Scenario, cut: FirstCut, budget: float) -> Iterator[Size]:
    for relays in (0, cut.relays):
        for share in (0.0, -0.15, 0.15, -0.3, 0.3):
            size = _spent(scenario, replace(cut, relays=relays), budget, share)
            if size:
                yield size


@dataclass(slots=True)
class _Search:
    scenario: Scenario
    seed: int
    base: Path
    told: Told
    tried: list[Tried] = field(default_factory=list)

    @property
    def runs_left(self) -> bool:
        return len(self.tried) < RUNS_MOST

    def hopeless(self, size: Size) -> bool:
        """No larger in anything than one that broke the promise."""
        return any(not one.kept and size.within(one.size) for one in self.tried)

    def try_size(self, size: Size) -> Tried:
        known = next((one for one in self.tried if one.size == size), None)
        if known:
            return known
        sized = size.of(self.scenario)
        one = Tried(size, cost(sized), under(sized, load_of(self.scenario), self.seed, self.base))
        self.tried.append(one)
        self.told(one)
        return one


def _more(here: Tried) -> Size:
    """One step of what binds: decode for its pace, else the line where it is full, else prefill."""
    size, verdict, found = here.size, here.point.verdict, here.point.found
    if verdict.tpot_s > verdict.tpot_allowed_s:
        size = replace(size, mains=size.mains + 1)
    if verdict.failed or verdict.ttft_s > verdict.ttft_allowed_s:
        if found["facts"]["line_use"] > LINE_FULL:
            size = replace(size, line_gbit_s=_line(size.line_gbit_s * 1.01))
        else:
            size = replace(size, prefills=size.prefills + max(1, size.prefills // 10))
    return size


def _less(size: Size) -> Iterator[Size]:
    if size.mains > 1:
        yield replace(size, mains=size.mains - 1)
    if size.prefills > 1:
        yield replace(size, prefills=size.prefills - 1)
    if size.relays:
        yield replace(size, relays=size.relays - 1)
    smaller = [step for step in LINE_STEPS_GBIT_S if step < size.line_gbit_s]
    if smaller:
        yield replace(size, line_gbit_s=smaller[-1])


def _line(least: float) -> float:
    return next((step for step in LINE_STEPS_GBIT_S if step >= least), LINE_STEPS_GBIT_S[-1])


def _spent(scenario: Scenario, cut: FirstCut, budget: float, share: float) -> Size | None:
    """As many of each as the budget buys, with `share` more of the first cut's weight on P; None where it buys too little."""
    best: Size | None = None
    for mains in range(1, 1000):
        prefills = max(1, round(mains * cut.prefills / cut.mains * (1 + share)))
        relays = min(cut.relays, 1 + mains // 20) if cut.relays else 0
        line = _line(cut.line_gbit_s * mains / cut.mains)
        size = Size(prefills, relays, mains, line)
        if cost(size.of(scenario)) > budget:
            break
        best = size
    return best


def as_data(plan: Plan) -> dict[str, Any]:
    def told(one: Tried) -> dict[str, Any]:
        verdict = one.point.verdict
        return {
            "size": str(one.size),
            "cost": one.cost,
            "rate": one.point.rate_per_s,
            "kept": one.kept,
            "ttft_p90_s": verdict.ttft_s,
            "tpot_p90_s": verdict.tpot_s,
            "bcr": one.bcr,
        }

    cut = plan.cut
    return {
        "first_cut": {
            "P": cut.prefills,
            "RLD": cut.relays,
            "MD": cut.mains,
            "line_gbit_s": cut.line_gbit_s,
            "batch": cut.batch,
        },
        "tried": [told(one) for one in plan.tried],
        "best": told(plan.best) if plan.best else None,
        "binds": plan.binds,
    }
