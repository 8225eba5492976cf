"""Why nothing may end on the relay: caches of P and MD over time, with the forbidden route and with ours.

Requests that end on RLD teach MD nothing, so its hits fall behind, so more requests are sent to RLD. A scenario of growing conversations
shows it; the share of requests that RLD keeps and the gap between the hit rates are the figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..sim.report.plot import line_plot
from ..sim.report.records import Record
from ..sim.scenario import Scenario, variant
from .fleet_of import fleet_of

BINS = 12
ROUTERS = {"low hits end on RLD": "low_hits_on_relay", "as published": "hit_threshold", "ours": "ours"}


@dataclass(frozen=True, slots=True)
class Bin:
    """Requests begun in one stretch of time. `gap`: P's token hit rate minus MD's."""

    at_s: float
    kept_by_relay: float
    gap: float
    second_token_p90_s: float
    relay_outputs: float


def over_time(scenario: Scenario, router: str, seed: int, base: Path) -> list[Bin]:
    changed = variant(scenario, {"fleet": {"router": router}})
    fleet = fleet_of(changed, seed, router)
    records = fleet.run(base, drain_s=60.0).records
    end = max(record.intended_s for record in records) + 1e-9
    bins: list[list[Record]] = [[] for _ in range(BINS)]
    for record in records:
        bins[int(record.intended_s / end * BINS)].append(record)
    return [_bin((i + 0.5) * end / BINS, found) for i, found in enumerate(bins) if found]


def _bin(at_s: float, records: Sequence[Record]) -> Bin:
    prompt = sum(record.prompt for record in records)
    ahead = sum(record.hit.get("prefill", 0) - record.hit.get("main_decode", 0) for record in records)
    seconds = sorted(value for record in records if (value := record.second_token_s) is not None)
    outputs = sum(record.outputs for record in records) or 1
    return Bin(
        at_s,
        sum(record.route == "P-RLD" for record in records) / len(records),
        ahead / prompt,
        seconds[int(0.9 * (len(seconds) - 1))] if seconds else 0.0,
        sum(record.shares.get("relay_decode", 0) for record in records) / outputs,
    )


def plots(found: Mapping[str, Sequence[Bin]]) -> dict[str, str]:
    """{file name: SVG}"""
    return {
        "runaway_share.svg": line_plot(
            "Outputs written by RLD",
            {name: [(one.at_s, one.relay_outputs) for one in bins] for name, bins in found.items()},
            x="seconds",
            y="share",
        ),
        "runaway_gap.svg": line_plot(
            "Hit rate of P minus that of MD",
            {name: [(one.at_s, one.gap) for one in bins] for name, bins in found.items()},
            x="seconds",
            y="share of prompt tokens",
        ),
        "runaway_second_token.svg": line_plot(
            "P90 to the second token",
            {name: [(one.at_s, one.second_token_p90_s) for one in bins] for name, bins in found.items()},
            x="seconds",
            y="seconds",
        ),
    }


def as_data(found: Mapping[str, Sequence[Bin]]) -> dict[str, Any]:
    return {
        name: [
            {
                "at_s": one.at_s,
                "kept_by_relay": one.kept_by_relay,
                "gap": one.gap,
                "relay_outputs": one.relay_outputs,
                "second_token_p90_s": one.second_token_p90_s,
            }
            for one in bins
        ]
        for name, bins in found.items()
    }
