"""Percentiles and tables."""

from collections.abc import Iterable, Sequence


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest rank; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def three(values: Sequence[float], unit: float = 1.0, digits: int = 2) -> str:
    """P50 / P90 / P99."""
    return " / ".join(f"{percentile(values, share) * unit:.{digits}f}" for share in (0.5, 0.9, 0.99))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)
