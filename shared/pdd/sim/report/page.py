"""One HTML page of one or more runs side by side: tables and plots, nothing loaded from anywhere."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from .plot import bar_plot, line_plot
from .records import Record, Run
from .summary import counted, percentile, summarize

TIMES = {
    "ttft_s": "time to first token",
    "second_token_s": "time to second token",
    "tpot_s": "time per output after the second",
    "itl_s": "between outputs",
    "largest_gap_s": "largest gap of a request",
    "e2e_s": "whole request",
    "session_s": "whole session",
    "session_without_thinking_s": "session without think time",
}
COLUMNS = ("mean", "p50", "p90", "p99", "max")
CURVE = [i / 100 for i in range(100)] + [0.995, 0.999, 1.0]

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid #9ca3af55; }
th:first-child, td:first-child { text-align: left; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
.plots svg { max-width: 100%; height: auto; }
.bad { color: #dc2626; }
"""


def page(title: str, runs: Sequence[Run], note: str = "") -> str:
    found = {run.title: summarize(run) for run in runs}
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(note)}</p>" if note else ""]
    parts += [_facts(found), _counts(found), _times(found), f'<div class="plots">{"".join(_plots(runs, found))}</div>']
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def _facts(found: Mapping[str, dict[str, Any]]) -> str:
    rows = [(name, ", ".join(f"{key} {value}" for key, value in one["facts"].items())) for name, one in found.items()]
    return table(("run", "what"), rows)


def _counts(found: Mapping[str, dict[str, Any]]) -> str:
    head = ("run", "requests", "failed", "requests/s", "outputs/s", "hit P", "hit MD", "RLD share", "WAN bytes/request")
    rows = []
    for name, one in found.items():
        rates = (f"{one['requests_per_s']:.2f}", f"{one['outputs_per_s']:.0f}")
        hits = [f"{one['hit'][role]:.1%}" if role in one["hit"] else "-" for role in ("prefill", "main_decode")]
        share = one["shares"].get("relay_decode")
        crossed = one["line"].get("bytes_per_request")
        rows.append(
            (
                name,
                str(one["requests"]),
                str(one["failed"]),
                *rates,
                *hits,
                "-" if share is None else f"{share:.1%}",
                "-" if crossed is None else f"{crossed:,.0f}",
            )
        )
    return table(head, rows) + "".join(_errors(name, one) for name, one in found.items())


def _errors(name: str, one: dict[str, Any]) -> str:
    told = "; ".join(f"{count} x {error}" for error, count in one["errors"].items())
    return f'<p class="bad">{escape(name)}: {escape(told)}</p>' if told else ""


def _times(found: Mapping[str, dict[str, Any]]) -> str:
    rows = []
    for key, said in TIMES.items():
        for name, one in found.items():
            if values := one[key]:
                rows.append((said, name, *(seconds(values.get(column)) for column in COLUMNS)))
    return table(("time", "run", *COLUMNS), rows)


def _plots(runs: Sequence[Run], found: Mapping[str, dict[str, Any]]) -> list[str]:
    plots = []
    for key, (of, values) in CURVES.items():
        curves = {run.title: _curve(values(run)) for run in runs}
        plots.append(line_plot(TIMES[key], curves, x="seconds", y=f"share of {of}", log_x=True))
    crossed = {run.title: _curve(r.wan_bytes / 1e6 for r in counted(run) if r.wan_bytes) for run in runs}
    plots.append(line_plot("over the line", crossed, x="MB", y="share of requests that crossed", log_x=True))
    plots.append(
        line_plot("outputs per second", {run.title: _rate(run) for run in runs}, x="seconds from start", y="tokens/s")
    )
    plots.append(
        line_plot(
            "requests under way", {run.title: _under_way(run) for run in runs}, x="seconds from start", y="requests"
        )
    )
    plots.append(
        bar_plot(
            "hit rate at P",
            {n: o["hit"].get("bins", {}) for n, o in found.items()},
            y="share of requests",
            percent=True,
        )
    )
    plots.append(bar_plot("who wrote", {n: o["shares"] for n, o in found.items()}, y="share of outputs", percent=True))
    plots.append(bar_plot("routes", {n: o["routes"] for n, o in found.items()}, y="requests"))
    return plots


def _of_requests(name: str) -> Callable[[Run], Iterable[float | None]]:
    return lambda run: (getattr(record, name) for record in counted(run) if not record.error)


CURVES: dict[str, tuple[str, Callable[[Run], Iterable[float | None]]]] = {
    "ttft_s": ("requests", _of_requests("ttft_s")),
    "second_token_s": ("requests", _of_requests("second_token_s")),
    "itl_s": ("gaps", lambda run: (run.gaps.percentile(share) for share in CURVE)),
    "largest_gap_s": ("requests", _of_requests("gap_s")),
    "e2e_s": ("requests", _of_requests("e2e_s")),
    "session_s": ("sessions", lambda run: (end - begin for _, begin, end, _ in run.sessions if begin >= run.warmup_s)),
}


def _curve(found: Iterable[float | None]) -> list[tuple[float, float]]:
    """(value, share of values up to it)"""
    values = sorted(value for value in found if value is not None)
    return [(percentile(values, share), share) for share in CURVE] if values else []


def _rate(run: Run) -> list[tuple[float, float]]:
    """An answer's outputs spread evenly over its time, in at most 120 slots."""
    width = max(run.seconds / 120, 1e-3)
    slots = [0.0] * 121
    for record in run.records:
        if record.first_s is not None and record.last_s is not None:
            _spread(slots, record, width)
    return [(i * width, count / width) for i, count in enumerate(slots[:120])]


def _spread(slots: list[float], record: Record, width: float) -> None:
    first, last = record.first_s or 0.0, record.last_s or 0.0
    begin, end = min(int(first / width), 120), min(int(last / width), 120)
    for slot in range(begin, end + 1):
        slots[slot] += record.outputs / (end - begin + 1)


def _under_way(run: Run) -> list[tuple[float, float]]:
    changes = sorted(
        [(record.sent_s, 1) for record in run.records] + [(r.last_s, -1) for r in run.records if r.last_s is not None]
    )
    found, now = [], 0
    for when, change in changes:
        now += change
        found.append((when, float(now)))
    return found[:: max(1, len(found) // 400)]
