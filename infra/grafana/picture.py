#!/usr/bin/env python3
"""Draws the dashboard's panels as one SVG, from a deployment's own Prometheus: `python3 -m infra.grafana.picture --help`.

The queries are the dashboard's, the drawing is ours: it shows what the panels answer, not how Grafana looks.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from .ask import STEP_S, Drawn, Series, ask

COLUMNS, WIDTH, PLOT, TOP, LEFT, GAP = 3, 500, 110, 44, 62, 14
LEGEND_LINE, LEGEND_COLUMNS, MOST_NAMED, MOST_LETTERS = 14, 2, 6, 34
ROW_TITLE = 34
COLOURS = ("#1f77b4", "#d9730d", "#2a9d55", "#c23b4e", "#7d5fb2", "#8a5a44", "#c760a8", "#5f6b76", "#9a9a1e", "#14a1b5")
SCALED = {
    "bps": ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")),
    "bytes": ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
    "s": ((1.0, "s"), (1e-3, "ms")),
    "percentunit": ((1e-2, "%"),),
    "reqps": ((1.0, "/s"),),
}
STYLE = (
    "text{font:11px sans-serif;fill:#555}.q{font:600 17px sans-serif;fill:#111}.t{font:600 13px sans-serif;fill:#222}"
    ".p{fill:#fff;stroke:#ddd}.g{stroke:#eee}polyline{fill:none;stroke-width:1.5}"
)


def svg(panels: Sequence[Drawn], start_s: float, stop_s: float, told: str) -> str:
    body, top, column, deepest = [f'<text x="{GAP}" y="20">{escape(told)}</text>'], 30, 0, 0
    for panel in panels:
        if not panel.unit:
            top, column, deepest = top + deepest, 0, 0
            body.append(f'<text class="q" x="{GAP}" y="{top + 24}">{escape(panel.title)}</text>')
            top += ROW_TITLE
            continue
        if column == COLUMNS:
            top, column, deepest = top + deepest, 0, 0
        height = TOP + PLOT + 22 + LEGEND_LINE * -(-min(len(panel.series), MOST_NAMED) // LEGEND_COLUMNS) + 6
        left = GAP + column * (WIDTH + GAP)
        body.append(f'<g transform="translate({left},{top})">{"".join(_panel(panel, height, start_s, stop_s))}</g>')
        column, deepest = column + 1, max(deepest, height + GAP)
    width, height = GAP + COLUMNS * (WIDTH + GAP), top + deepest
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
    )
    return "\n".join(
        [opening, f"<style>{STYLE}</style>", '<rect width="100%" height="100%" fill="#f7f7f8"/>', *body, "</svg>\n"]
    )


def _panel(panel: Drawn, height: int, start_s: float, stop_s: float) -> Iterator[str]:
    yield f'<rect class="p" width="{WIDTH}" height="{height}" rx="4"/>'
    yield f'<text class="t" x="10" y="18">{escape(panel.title)}</text><text x="10" y="33">{escape(panel.says)}</text>'
    if not panel.series:
        yield f'<text x="{WIDTH // 2}" y="{TOP + PLOT // 2}" text-anchor="middle">no data: it has not happened</text>'
        return
    most = max((value for series in panel.series for _, value in series.points), default=0.0) or 1.0
    divisor, unit = next(
        (scale for scale in SCALED.get(panel.unit, ((1.0, ""),)) if most >= scale[0]),
        SCALED.get(panel.unit, ((1.0, ""),))[-1],
    )
    for share in (0.0, 0.5, 1.0):
        y = TOP + PLOT * (1 - share)
        yield f'<path class="g" d="M{LEFT} {y:g}H{WIDTH - 10}"/>'
        yield f'<text x="{LEFT - 5}" y="{y + 4:g}" text-anchor="end">{most * share / divisor:.3g} {unit}</text>'
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        x = LEFT + (WIDTH - 10 - LEFT) * share
        yield f'<text x="{x:g}" y="{TOP + PLOT + 14}" text-anchor="{anchor}">{(stop_s - start_s) * share:.0f} s</text>'
    for i, series in enumerate(panel.series):
        colour = COLOURS[i % len(COLOURS)]
        yield from _lines(series, colour, most, start_s, stop_s)
        if i < MOST_NAMED:
            yield _named(i, colour, series, len(panel.series))


def _lines(series: Series, colour: str, most: float, start_s: float, stop_s: float) -> Iterator[str]:
    """One for each stretch without a hole."""
    stretches: list[list[tuple[float, float]]] = []
    for at, value in series.points:
        if not stretches or at - stretches[-1][-1][0] > 1.5 * STEP_S:
            stretches.append([])
        stretches[-1].append((at, value))
    for stretch in stretches:
        places = " ".join(
            f"{LEFT + (WIDTH - 10 - LEFT) * (at - start_s) / (stop_s - start_s):.0f},{TOP + PLOT * (1 - value / most):.0f}"
            for at, value in (stretch if len(stretch) > 1 else stretch * 2)
        )
        yield f'<polyline points="{places}" stroke="{colour}" stroke-linecap="round"/>'


def _named(i: int, colour: str, series: Series, count: int) -> str:
    more = f" (and {count - MOST_NAMED} more)" if i == MOST_NAMED - 1 and count > MOST_NAMED else ""
    x, y = LEFT + i % LEGEND_COLUMNS * 220, TOP + PLOT + 30 + i // LEGEND_COLUMNS * LEGEND_LINE
    name = f"{series.legend[:MOST_LETTERS]}{more}"
    return f'<rect x="{x}" y="{y - 8}" width="12" height="3" fill="{colour}"/><text x="{x + 17}" y="{y}">{escape(name)}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--a", default="http://127.0.0.1:9090", help="site A's Prometheus")
    parser.add_argument("--b", default="http://127.0.0.1:9091", help="site B's")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=Path("dashboard.svg"))
    told = parser.parse_args()
    stop_s = time.time()
    start_s = stop_s - told.minutes * 60
    panels = ask({"pdd-a": told.a, "pdd-b": told.b}, start_s, stop_s)
    told.out.write_text(
        svg(panels, start_s, stop_s, "Drawn from the dashboard's queries by infra/grafana/picture.py; not by Grafana.")
    )


if __name__ == "__main__":
    main()
