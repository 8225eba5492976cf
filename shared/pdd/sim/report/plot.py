"""Plots as inline SVG: lines and bars, readable on light and dark ground, each with its numbers as text for whoever cannot see it."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 34, 44
COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#65a30d")
INK, GRID = "#6b7280", "#9ca3af55"


class Axis:
    """Data to pixels; with `log` only what is above 0 has a place."""

    def __init__(self, low: float, high: float, start: float, stop: float, *, log: bool = False) -> None:
        self.log = log
        if log:
            low, high = max(low, 1e-6), max(high, 1e-6)
        if high <= low:
            high = low * 1.1 if low > 0 else low + 1.0
        self.low, self.high, self.start, self.stop = low, high, start, stop

    def at(self, value: float) -> float:
        if self.log:
            share = (log10(max(value, self.low)) - log10(self.low)) / (log10(self.high) - log10(self.low))
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + (self.stop - self.start) * min(max(share, 0.0), 1.0)

    def ticks(self) -> list[float]:
        if self.log:
            decades = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
            steps = (1, 2, 5) if len(decades) <= 4 else (1,)
            found = [step * 10.0**decade for decade in decades for step in steps]
        else:
            step = _nice((self.high - self.low) / 5)
            found = [i * step for i in range(floor(self.low / step), ceil(self.high / step) + 1)]
        slack = 1e-9 * abs(self.high)
        return [tick for tick in found if self.low - slack <= tick <= self.high + slack]


def _nice(raw: float) -> float:
    scale = 10.0 ** floor(log10(raw))
    return next(step * scale for step in (1, 2, 2.5, 5, 10) if step * scale >= raw)


def line_plot(
    title: str,
    series: Mapping[str, Points],
    *,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool = False,
    from_zero: bool = True,
    mark: bool = False,
) -> str:
    """One line for each series, in the order given. `mark`: a dot at each point."""
    points = [point for line in series.values() for point in line]
    if not points:
        return _empty(title)
    xs, ys = [p[0] for p in points if not log_x or p[0] > 0], [p[1] for p in points if not log_y or p[1] > 0]
    across = Axis(min(xs, default=1), max(xs, default=1), LEFT, WIDTH - RIGHT, log=log_x)
    low = 0.0 if from_zero and not log_y else min(ys, default=1)
    up = Axis(min(low, min(ys, default=low)), max(ys, default=1), HEIGHT - BOTTOM, TOP, log=log_y)
    body = [*_frame(title, across, up, x, y)]
    for colour, (name, line) in zip(_colours(len(series)), series.items(), strict=True):
        path = " ".join(f"{across.at(a):.1f},{up.at(b):.1f}" for a, b in line)
        body.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"><title>{escape(name)}</title></polyline>'
        )
        if mark:
            body += [
                f'<circle cx="{across.at(a):.1f}" cy="{up.at(b):.1f}" r="2.6" fill="{colour}">'
                f"<title>{escape(name)}: {a:g}, {b:.4g}</title></circle>"
                for a, b in line
            ]
    return _svg(title, body, list(series))


def bar_plot(title: str, bars: Mapping[str, Mapping[str, float]], *, y: str, percent: bool = False) -> str:
    """`bars`: {series: {group: value}}; groups stand side by side, series within them."""
    groups = list(dict.fromkeys(group for values in bars.values() for group in values))
    if not groups:
        return _empty(title)
    top = max(value for values in bars.values() for value in values.values())
    up = Axis(0.0, top or 1.0, HEIGHT - BOTTOM, TOP)
    across = Axis(0, len(groups), LEFT, WIDTH - RIGHT)
    body = [*_frame(title, None, up, "", y)]
    width = (across.at(1) - across.at(0)) * 0.8 / len(bars)
    for i, (colour, (name, values)) in enumerate(zip(_colours(len(bars)), bars.items(), strict=True)):
        for j, group in enumerate(groups):
            value = values.get(group, 0.0)
            at, height = across.at(j + 0.1) + i * width, HEIGHT - BOTTOM - up.at(value)
            told = f"{value:.1%}" if percent else f"{value:.4g}"
            body.append(
                f'<rect x="{at:.1f}" y="{up.at(value):.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}">'
                f"<title>{escape(name)}, {escape(group)}: {told}</title></rect>"
            )
    for j, group in enumerate(groups):
        body.append(_text(across.at(j + 0.5), HEIGHT - BOTTOM + 14, group, size=9 if len(groups) > 6 else 11))
    return _svg(title, body, list(bars) if len(bars) > 1 else [])


def _frame(title: str, across: Axis | None, up: Axis, x: str, y: str) -> list[str]:
    found = [_text(LEFT, 16, title, anchor="start", size=13, weight=600)]
    for tick in up.ticks():
        at = up.at(tick)
        found.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="{GRID}"/>')
        found.append(_text(LEFT - 6, at + 4, f"{tick:.4g}", anchor="end"))
    for tick in across.ticks() if across else ():
        at = across.at(tick) if across else 0.0
        found.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="{GRID}"/>')
        found.append(_text(at, HEIGHT - BOTTOM + 14, f"{tick:.4g}"))
    found.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x))
    found.append(_text(14, (TOP + HEIGHT - BOTTOM) / 2, y, turn=True))
    return found


def _text(
    x: float, y: float, said: str, *, anchor: str = "middle", size: int = 11, weight: int = 400, turn: bool = False
) -> str:
    rotated = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turn else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{INK}"{rotated}>'
        f"{escape(said)}</text>"
    )


def _colours(count: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(count)]


def _svg(title: str, body: Sequence[str], names: Sequence[str]) -> str:
    """The legend stands below the plot."""
    rows = []
    for i, (colour, name) in enumerate(zip(_colours(len(names)), names, strict=True)):
        x, y = LEFT + (i % 2) * (WIDTH - LEFT) / 2, HEIGHT + 14 * (i // 2)
        rows.append(f'<rect x="{x:.0f}" y="{y - 8:.0f}" width="10" height="10" fill="{colour}"/>')
        rows.append(_text(x + 15, y + 1, name, anchor="start"))
    height = HEIGHT + 14 * ((len(names) + 1) // 2)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img" '
        f'aria-label="{escape(title, quote=True)}" font-family="system-ui, sans-serif">{"".join([*body, *rows])}</svg>'
    )


def _empty(title: str) -> str:
    return _svg(
        title,
        [_text(LEFT, 16, title, anchor="start", size=13, weight=600), _text(WIDTH / 2, HEIGHT / 2, "no data")],
        [],
    )
