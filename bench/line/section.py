"""One measurement and how it reads."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MB = 1_000_000


@dataclass
class Section:
    """`rows` under `head`; `said` stands above the table; `data` is for machines; `plots` are SVG by file name."""

    title: str
    place: str
    said: str = ""
    head: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    plots: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        lines = [f"## {self.title}", "", f"Where: {self.place}. {self.said}".rstrip(), ""]
        if self.rows:
            lines += [_row(self.head), _row(["---"] * len(self.head)), *(_row(row) for row in self.rows), ""]
        lines += [f"![{self.title}]({name})\n" for name in self.plots]
        return "\n".join(lines)


@dataclass(frozen=True)
class Told:
    """How much time there is."""

    quick: bool

    def __call__(self, full: float, quick: float) -> float:
        return quick if self.quick else full

    def times(self, full: int, quick: int) -> int:
        return quick if self.quick else full


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def middle(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Median (least-most)."""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{middle(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"
