"""`pdd trace`: one request's spans, asked from every service of the deployment and drawn as a waterfall. No collector is needed.

A service remembers its last spans and answers /spans/NAME; what belongs to the same trace is asked for by its id.
"""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from urllib.parse import quote

import httpx
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .deployment import DeploymentError
from .run_directory import RunDirectory

PATIENCE_S = 5.0
BAR_COLUMNS = 24  # at least
TIMES_COLUMNS = 30  # both times, and what stands between columns
FEW = 3  # more spans of one kind in one process are drawn as one
STYLES = {
    "request": "bold",
    "route": "cyan",
    "prefill": "yellow",
    "prefill.chunk": "yellow",
    "kv.transfer": "magenta",
    "relay": "green",
    "handover": "red",
    "extend": "red",
    "main": "blue",
}
HIDDEN = ("pdd.request", "pdd.epoch", "pdd.route", "pdd.epochs", "gen_ai.operation.name")


class SpanSeen(msgspec.Struct, frozen=True):
    """One span as a service tells it. Times are that process's wall clock, in seconds."""

    service: str
    instance: str
    name: str
    trace: str
    root: bool
    start_s: float
    stop_s: float
    attributes: dict[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Row:
    """`count` spans of one name in one process. Seconds count from the first of all."""

    who: str
    name: str
    start_s: float
    stop_s: float
    said: str
    count: int = 1


def show_trace(run: RunDirectory, name: str, console: Console, *, as_json: bool) -> None:
    """Raises DeploymentError where nothing runs, or nobody knows the request."""
    spans = find(_addresses(run), name)
    if not spans:
        raise DeploymentError(f"no service here remembers {name!r}; each keeps its last few thousand spans")
    if as_json:
        console.print_json(data=[msgspec.to_builtins(span) for span in spans])
        return
    draw(spans, console)


def find(addresses: Sequence[str], name: str) -> list[SpanSeen]:
    """In the order of their beginnings. Services that do not answer are passed over."""
    for prefix in ("chatcmpl-", "cmpl-"):
        name = name.removeprefix(prefix)
    known = _ask(addresses, [name])
    traces = list(dict.fromkeys(span.trace for span in known))
    found = known + _ask(addresses, traces)
    unique = {msgspec.json.encode(span): span for span in found}
    return sorted(unique.values(), key=lambda span: (span.start_s, not span.root, span.stop_s))


def rows_of(spans: Iterable[SpanSeen]) -> list[Row]:
    """Many spans of one kind are one row."""
    rows: list[Row] = []
    began = min(span.start_s for span in spans)
    for span in spans:
        rows.append(Row(_who(span), span.name, span.start_s - began, span.stop_s - began, _said(span)))
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row.who, row.name), []).append(row)
    drawn = [row for same in kinds.values() for row in (same if len(same) <= FEW else [_merged(same)])]
    return sorted(drawn, key=lambda row: (row.start_s, -row.stop_s))


def draw(spans: Sequence[SpanSeen], console: Console) -> None:
    for root in spans:
        if root.root:
            console.print(f"{_headline(root)}", soft_wrap=True)
    rows = rows_of(spans)
    whole_s = max(row.stop_s for row in rows) or 1e-9
    room = console.width - max(len(_label(row)) for row in rows) - max(len(row.who) for row in rows) - TIMES_COLUMNS
    columns = max(BAR_COLUMNS, room - min(room // 2, max(len(row.said) for row in rows)))
    table = Table(box=None, pad_edge=False)
    for title, justify in (("process", "left"), ("span", "left"), (f"0 to {_seconds(whole_s)}", "left")):
        table.add_column(title, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("at", justify="right", no_wrap=True)
    table.add_column("for", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in rows:
        style = STYLES.get(row.name, "")
        bar = Text(_bar(row, whole_s, columns), style=style)
        times = (_seconds(row.start_s), _seconds(row.stop_s - row.start_s))
        table.add_row(row.who, Text(_label(row), style=style), bar, *times, Text(row.said, style="dim"))
    console.print(table)


def _addresses(run: RunDirectory) -> list[str]:
    deployed = run.read()
    if deployed is None:
        raise DeploymentError(f"nothing runs from {run.path}; `pdd up` starts it")
    return [f"127.0.0.1:{record.ports['http']}" for record in deployed.processes if "http" in record.ports]


def _ask(addresses: Sequence[str], names: Sequence[str]) -> list[SpanSeen]:
    """All at once: one that does not answer costs its patience once."""
    asked = [(address, name) for name in names for address in addresses]
    if not asked:
        return []
    with ThreadPoolExecutor(len(asked)) as pool:
        return [span for spans in pool.map(lambda one: _ask_one(*one), asked) for span in spans]


def _ask_one(address: str, name: str) -> list[SpanSeen]:
    try:
        url = f"http://{address}/spans/{quote(name, safe='')}"
        answer = httpx.get(url, timeout=PATIENCE_S, trust_env=False).raise_for_status()
        return msgspec.json.decode(answer.content, type=list[SpanSeen])
    except (httpx.HTTPError, msgspec.DecodeError):
        return []


def _who(span: SpanSeen) -> str:
    """`name@site#incarnation` without what no reader needs."""
    return span.instance.partition("#")[0]


def _said(span: SpanSeen) -> str:
    if span.root:
        return ""
    shown = {key.removeprefix("pdd."): value for key, value in span.attributes.items() if key not in HIDDEN}
    return " ".join(f"{key}={value}" for key, value in shown.items() if not key.startswith("predicted"))


def _headline(root: SpanSeen) -> str:
    told = root.attributes
    parts = [
        f"[bold]{told.get('pdd.request', '')}[/bold]",
        str(told.get("pdd.route", "")),
        f"{told.get('gen_ai.usage.input_tokens', '?')} + {told.get('gen_ai.usage.output_tokens', '?')} tokens",
        f"ended: {told.get('gen_ai.response.finish_reasons', '?')}",
        f"epochs: {told.get('pdd.epochs', 1)}",
        f"trace {root.trace}",
    ]
    return "  ".join(part for part in parts if part)


def _merged(same: Sequence[Row]) -> Row:
    start_s, stop_s = min(row.start_s for row in same), max(row.stop_s for row in same)
    return replace(same[0], start_s=start_s, stop_s=stop_s, said="", count=len(same))


def _label(row: Row) -> str:
    return row.name if row.count == 1 else f"{row.name} x{row.count}"


def _bar(row: Row, whole_s: float, columns: int) -> str:
    first = min(columns - 1, int(row.start_s / whole_s * columns))
    last = max(first + 1, round(row.stop_s / whole_s * columns))
    return " " * first + "━" * (last - first)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.1f} ms"
