"""`python -m bench.handover [--quick] [--only virtual|stream|live]`."""

import argparse
from collections.abc import Callable
from statistics import median

from . import live, stream, virtual
from .figures import percentile, table, three
from .stream import Streamed
from .virtual import Served, Variant

POLICIES = ("one_shot", "catch_up", "adaptive")
RELAYED = [Variant(name, name, "P-RLD-MD") for name in POLICIES]
WAYS = [
    Variant("same-site PD", route="P-MD", same_site=True),
    Variant("cross-site, no relay", route="P-MD"),
    Variant("PDD, relay for all", route="P-RLD-MD"),
    Variant("PDD, routes by predicted seconds"),
]


def gaps(count: int, slices: tuple[int, ...]) -> str:
    rows = []
    for slice_tokens in slices:
        served = {
            one.name: virtual.play(virtual.replace(one, slice_tokens=slice_tokens), virtual.load(count, PER_S))
            for one in RELAYED
        }
        base = sum(one.relayed for one in served["one_shot"])
        rows += [_gap_row(slice_tokens, name, found, base) for name, found in served.items()]
    head = ("MD's slice", "policy", "fence gap / median", "largest gap / median", "worst", "RLD tokens", "extra")
    return table(head, rows)


def _gap_row(slice_tokens: int, name: str, served: list[Served], base: int) -> list[str]:
    fence = [one.fence_stretch for one in served if one.fence_stretch]
    largest = [one.stretch for one in served]
    relayed = sum(one.relayed for one in served)
    extra = f"{100 * (relayed / base - 1):+.0f} %"
    return [str(slice_tokens), name, three(fence), three(largest), f"{max(largest):.1f}", str(relayed), extra]


def latencies(count: int) -> str:
    served = {one.name: virtual.play(one, virtual.load(count, PER_S)) for one in WAYS}
    base = percentile([one.token_s(1) for one in served[WAYS[0].name]], 0.99)
    rows = []
    for name, found in served.items():
        second = [one.token_s(1) for one in found]
        relayed = sum(one.report.route == "P-RLD-MD" for one in found)
        ratio = f"{percentile(second, 0.99) / base:.2f}"
        rows.append([name, three([one.token_s(0) for one in found]), three(second), ratio, f"{relayed} of {count}"])
    return table(("way", "first token, s", "second token, s", "second's P99 / same-site", "took the relay"), rows)


def streamed(quick: bool) -> str:
    rows = []
    for cost, widths in (("instant", (8, 60)), ("h100-70b-tp8", (60,))) if quick else STREAMED:
        found = stream.measure(cost, widths, 100 if quick else 400, 1 if quick else 3)
        rows += [_stream_row(cost, width, [one for one in found if one.streams == width]) for width in widths]
    head = (
        "engine",
        "streams",
        "router CPU us a token",
        "tokens/s per router core",
        "tokens an event",
        "tokens/s seen",
    )
    return table(head, rows)


def _stream_row(cost: str, width: int, found: list[Streamed]) -> list[str]:
    token_us = median(one.token_us for one in found)
    each = median(one.tokens / one.events for one in found)
    seen = median(one.tokens / one.seconds for one in found)
    return [cost, str(width), f"{token_us:.0f}", f"{1e6 / token_us:.0f}", f"{each:.1f}", f"{seen:.0f}"]


def lived(quick: bool) -> str:
    """Over one median for all: where the machine is busy, a request's tokens come in lumps, and its own is next to nothing."""
    policies = ("one_shot", "catch_up")
    found = live.measure(policies, 1 if quick else 3, 4)
    usual = median(one.usual_s for one in found)
    rows = []
    for policy in policies:
        these = [one for one in found if one.policy == policy]
        fence, largest = (
            [gap / usual for gap in gaps] for gaps in zip(*((one.fence_s, one.largest_s) for one in these), strict=True)
        )
        relayed = median(one.relayed for one in these)
        rows.append([policy, str(len(these)), three(fence, digits=1), three(largest, digits=1), f"{relayed:.0f}"])
    head = ("policy", "hand-overs", "fence gap / median", "largest gap / median", "RLD tokens each")
    return f"median gap {1000 * usual:.1f} ms\n\n{table(head, rows)}"


STREAMED = (("instant", (1, 8, 32, 60)), ("h100-70b-tp8", (8, 60)))
PER_S = 1.2  # requests: the line is about 70 % busy, P 45 %

SECTIONS: dict[str, tuple[str, Callable[[bool], str]]] = {
    "gaps": ("Gaps, virtual time", lambda quick: gaps(30 if quick else 100, (16,) if quick else (16, 24))),
    "latencies": ("First and second token, virtual time", lambda quick: latencies(30 if quick else 100)),
    "stream": ("Streamed tokens", streamed),
    "live": ("Gaps, torch on this machine", lived),
}


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.handover", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under a minute, for CI; fewer requests")
    parser.add_argument("--only", choices=SECTIONS, action="append")
    told = parser.parse_args()
    for name in told.only or [name for name in SECTIONS if not (told.quick and name == "live")]:
        title, section = SECTIONS[name]
        print(f"## {title}\n\n{section(told.quick)}\n", flush=True)


if __name__ == "__main__":
    main()
