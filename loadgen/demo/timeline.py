"""One request, told so that a person understands it: what was asked, which way it went and why, who wrote what and when."""

from statistics import median
from textwrap import wrap
from typing import Any

from rich.console import Console
from rich.markup import escape

from .play import Played

ROLE = {"prefill": "P", "relay_decode": "RLD", "main_decode": "MD"}
TERMS = {
    "queue": "wait for P",
    "prefill": "prefill",
    "line": "rest of the line's work",
    "near": "copy to RLD",
    "main_step": "MD's step",
    "relay_step": "RLD's step",
    "relay_load": "RLD's load",
    "relay_price": "price of RLD",
    "host_price": "price of P as host",
    "main_load": "MD's load",
    "line_share": "line's share",
    "load": "load",
}
WIDTH = 100


def show(played: Played, number: int, count: int, console: Console) -> None:
    title = f"{number} of {count}: conversation {played.turn.conversation!r}, turn {played.number_in_conversation}"
    console.rule(f"[bold]{title}[/bold]", align="left", style="dim")
    for name, lines in (
        ("asked", [_asked(played)]),
        ("prompt", [_prompt(played)]),
        ("route", _route(played.report)),
        ("timeline", _timeline(played)),
        ("line", _line(played)),
        ("written by", [_written_by(played.report)]),
        ("largest gap", [_largest_gap(played)]),
        ("answer", wrap(played.text, WIDTH) or ["(nothing)"]),
    ):
        for i, line in enumerate(lines):
            console.print(f"  [cyan]{name if i == 0 else '':<12}[/cyan] {escape(line)}", soft_wrap=True)


def _asked(played: Played) -> str:
    turn = played.turn
    return f"(after a tool's result) {turn.question}" if turn.brings_result else turn.question


def _prompt(played: Played) -> str:
    count = played.report["prompt_tokens"]
    return f"{count} tokens; P had {played.hit('prefill')} of them in its cache, MD had {played.hit('main_decode')}"


def _route(report: dict[str, Any]) -> list[str]:
    terms = " + ".join(
        f"{TERMS.get(name, name)} {value:.2f}" for name, value in report["terms"].items() if value >= 0.005
    )
    lines = [f"{report['route']}, at a predicted {sum(report['terms'].values()):.2f} s = {terms}"]
    lines += [f"rather than {name} at {seconds:.2f} s" for name, seconds in report["others"].items()]
    return lines


def _timeline(played: Played) -> list[str]:
    at, lines = played.token_at_s, [" 0.00 s  asked"]
    last = len(at) - 1
    starts = {start: role for role, start, _ in played.report["spoke"]}
    for index in sorted({0, 1, last} | set(starts)):
        if 0 <= index <= last:
            marks = [word for word, here in (("first", 0), ("second", 1), ("last", last)) if index == here]
            speaker = f", {ROLE[starts[index]]} begins" if index in starts else ""
            fence = ", the hand-over" if index and index == played.report["fence"] else ""
            lines.append(
                f"{at[index]:5.2f} s  token {index}{''.join(f', the {mark}' for mark in marks)}{speaker}{fence}"
            )
    return lines


def _line(played: Played) -> list[str]:
    lines = []
    for transfer in sorted(played.report["transfers"], key=lambda transfer: transfer["way"], reverse=True):
        seconds, size = float(transfer["seconds"]), int(transfer["bytes"])
        way = "across the line" if transfer["way"] == "wan" else "within site A"
        rate = f" ({size / seconds * 8e-6:.0f} Mbit/s)" if seconds > 0 and size else ""
        to = ROLE[str(transfer["to"])]
        lines.append(f"KV of {transfer['tokens']} tokens to {to} {way}: {size / 1e6:.1f} MB in {seconds:.2f} s{rate}")
    return lines or ["no KV was sent"]


def _written_by(report: dict[str, Any]) -> str:
    return ", ".join(f"{ROLE[role]} tokens {start} to {stop - 1}" for role, start, stop in report["spoke"])


def _largest_gap(played: Played) -> str:
    gaps = played.gaps
    if not gaps:
        return "one token has none"
    largest = max(gaps)
    return f"{largest:.2f} s, before token {gaps.index(largest) + 1}; the median is {median(gaps):.3f} s"
