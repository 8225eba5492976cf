"""The same requests served by different systems, side by side: under one load, and under the most with which each keeps its promise."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sim.scenario import Published, Scenario, variant
from .capacity import Point, capacity, load_of, under
from .worth import cost

NO_RELAY: dict[str, Any] = {"fleet": {"relay": {"workers": 0}}, "routing": {"host_price_s": 1e6}}
STOP_AND_WAIT_GBIT_S = 0.115  # a flow's ceiling that explains both published studies, see docs/results/fleet.md
STOP_AND_WAIT = {"flow_gbit_s": STOP_AND_WAIT_GBIT_S, "order": "fair", "streaming": False}


def systems(scenario: Scenario) -> dict[str, Scenario]:
    """The scenario's own [systems], else the usual ones. The scenario itself comes last, as "ours"."""
    changes = scenario.systems or _usual(scenario)
    found = {name: variant(scenario, change | {"name": name, "systems": {}}) for name, change in changes.items()}
    return found | {"ours": variant(scenario, {"name": "ours", "systems": {}})}


def _usual(scenario: Scenario) -> dict[str, dict[str, Any]]:
    alike = {"chip": scenario.fleet.prefill.chip, "cost": scenario.fleet.prefill.cost}
    return {
        "same site, one chip": _with(NO_RELAY, {"same_site": True, "main": alike}),
        "same site, two chips": _with(NO_RELAY, {"same_site": True}),
        "cross-site, stop-and-wait": NO_RELAY | {"line": STOP_AND_WAIT},
        "cross-site, our line": NO_RELAY,
        "remote prefill": NO_RELAY | {"routing": NO_RELAY["routing"] | {"main_alone_tokens": 4096}},
        "PDD as published": {
            "fleet": {"router": "hit_threshold", "policy": "adaptive"},
            "routing": {"host_price_s": 1e6, "main_alone_tokens": 0},
            "line": STOP_AND_WAIT,
        },
    }


def _with(base: dict[str, Any], fleet: dict[str, Any]) -> dict[str, Any]:
    return base | {"fleet": base["fleet"] | fleet}


@dataclass(frozen=True, slots=True)
class Row:
    """`at`: the run under the scenario's load; `best`: the run under the most that keeps the promise, None where none does."""

    name: str
    cost: float
    at: Point
    best: Point | None

    @property
    def bcr(self) -> float:
        return self.best.rate_per_s / self.cost if self.best else 0.0


def row(scenario: Scenario, seed: int, base: Path, *, precision: float, search: bool = True) -> Row:
    """One system. Its runs use the same random draws as every other's with this seed."""
    load = load_of(scenario)
    here = under(scenario, load, seed, base)
    best = capacity(scenario, seed, base, first=load, precision=precision, known=here) if search else None
    return Row(scenario.name, cost(scenario), here, best)


HEAD = (
    "system",
    "cost",
    "requests/s in SLA",
    "BCR",
    "TTFT p50/p90/p99",
    "2nd token p50/p90/p99",
    "alone p99",
    "per output p50/p90/p99",
    "gap p99",
    "RLD share",
    "line use",
    "binds",
)


def cells(row: Row) -> list[str]:
    found = row.at.found
    best = row.best
    return [
        row.name,
        f"{row.cost:.2f}",
        f"{best.rate_per_s:.2f}" if best else "-",
        f"{row.bcr:.4f}" if best else "-",
        _triple(found["ttft_s"], 1, "s"),
        _triple(found["second_token_s"], 1, "s"),
        f"{found['alone_s'].get('p99', 0.0):.1f} s",
        _triple(found["tpot_s"], 1000, "ms"),
        f"{found['largest_gap_s'].get('p99', 0.0):.2f} s",
        f"{found['shares'].get('relay_decode', 0.0):.1%}",
        f"{found['facts']['line_use']:.0%}",
        (best or row.at).verdict.binds,
    ]


def told_cells(told: Published, *, with_transfer: bool) -> list[str]:
    """What is published of a system, in the columns of `cells`."""
    waits = _told(told.ttft_s, 1, "s")
    rate, cost = told.requests_per_s, told.cost
    return [
        "  published",
        f"{cost:.2f}" if cost else "-",
        f"{rate:.2f}" if rate else "-",
        f"{rate / cost:.4f}" if rate and cost else "-",
        "-" if with_transfer else waits,
        waits if with_transfer else "-",
        "-",
        _told(told.tpot_s, 1000, "ms"),
        "-",
        f"{told.relay_share:.1%}" if told.relay_share else "-",
        "-",
        "-",
    ]


def _told(values: Sequence[float], scale: float, unit: str) -> str:
    return " / ".join(f"{value * scale:.1f}" for value in values) + f" {unit}" if values else "-"


def _triple(values: dict[str, float], scale: float, unit: str) -> str:
    return _told([values[name] for name in ("p50", "p90", "p99")] if values else (), scale, unit)


def as_data(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "name": row.name,
            "cost": row.cost,
            "bcr": row.bcr,
            "rate_in_sla": row.best.rate_per_s if row.best else None,
            "at": {"rate": row.at.rate_per_s, "summary": row.at.found, "counts": row.at.counts},
            "best": {"summary": row.best.found, "counts": row.best.counts} if row.best else None,
        }
        for row in rows
    ]


def lines(scenario: Scenario, rows: Sequence[Row]) -> list[list[str]]:
    """The table: each row, and under it what is published of that system."""
    found = []
    for row in rows:
        found.append(cells(row))
        if told := scenario.published.get(row.name):
            found.append(told_cells(told, with_transfer=scenario.sla.with_transfer))
    return found


def markdown(table: Sequence[Sequence[str]]) -> str:
    head = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    return "\n".join([*head, *("| " + " | ".join(line) + " |" for line in table)]) + "\n"
