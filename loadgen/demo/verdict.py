"""What the demo has shown, or has not: five checks, and a table of what a client and the line felt."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from .play import Played


@dataclass(frozen=True, slots=True)
class Check:
    said: str
    held: bool


def checks(played: Sequence[Played], alone: Sequence[Sequence[int]]) -> list[Check]:
    count = len(played)
    routes = [one.report["route"] for one in played]
    handed = [one for one in played if {"relay_decode", "main_decode"} <= {role for role, _, _ in one.report["spoke"]}]
    later = [one for one in played[1:] if one.hit("main_decode") > 0]
    return [
        Check(f"{routes.count('P-MD')} of {count} requests went P-MD", "P-MD" in routes),
        Check(f"{routes.count('P-RLD-MD')} went P-RLD-MD", "P-RLD-MD" in routes),
        Check(f"{len(handed)} times the pen passed from RLD to MD in the middle of an answer", bool(handed)),
        Check(f"{len(later)} later requests found a part of their prompt in MD's cache", bool(later)),
        _equality(played, alone),
    ]


def _equality(played: Sequence[Played], alone: Sequence[Sequence[int]]) -> Check:
    tokens = sum(len(one.ids) for one in played)
    wrong = [
        f"answer {number} differs from token {first_difference(one.ids, ids)} on"
        for number, (one, ids) in enumerate(zip(played, alone, strict=True), start=1)
        if one.ids != list(ids)
    ]
    said = f"all {len(played)} answers ({tokens} tokens) are, id by id, what one engine alone writes"
    return Check("; ".join(wrong) or said, bool(played) and not wrong)


def first_difference(served: Sequence[int], alone: Sequence[int]) -> int:
    """The first output index at which they differ; their common length when one is the other's beginning."""
    for index, (left, right) in enumerate(zip(served, alone, strict=False)):
        if left != right:
            return index
    return min(len(served), len(alone))


def show(played: Sequence[Played], held: Sequence[Check], bytes_per_token: int, console: Console) -> None:
    console.rule("[bold]summary[/bold]", align="left", style="dim")
    console.print(_table(played, bytes_per_token))
    for check in held:
        console.print(f"  [green]yes[/green]  {check.said}" if check.held else f"  [red]NO[/red]   {check.said}")
    whole = all(check.held for check in held)
    console.print("[green]All of it held.[/green]" if whole else "[red]Not all of it held.[/red]")


def _table(played: Sequence[Played], bytes_per_token: int) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("request", "route"):
        table.add_column(column)
    for column in (
        *("prompt", "hit at P", "hit at MD", "first token", "second token", "largest gap"),
        *("MB on the line", "without MD's cache"),
    ):
        table.add_column(column, justify="right")
    sent = whole = 0
    for number, one in enumerate(played, start=1):
        crossed, all_of_it = one.bytes_over_line(), int(one.report["prompt_tokens"]) * bytes_per_token
        sent, whole = sent + crossed, whole + all_of_it
        at = one.token_at_s
        table.add_row(
            f"{number} {one.turn.conversation} {one.number_in_conversation}",
            one.report["route"],
            str(one.report["prompt_tokens"]),
            str(one.hit("prefill")),
            str(one.hit("main_decode")),
            f"{at[0]:.2f} s",
            f"{at[1]:.2f} s" if len(at) > 1 else "",
            f"{max(one.gaps, default=0.0):.2f} s",
            f"{crossed / 1e6:.1f}",
            f"{all_of_it / 1e6:.1f}",
        )
    table.add_row("all", "", "", "", "", "", "", "", f"{sent / 1e6:.1f}", f"{whole / 1e6:.1f}", style="bold")
    return table
