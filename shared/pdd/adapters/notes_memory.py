"""Notes kept in lists, for tests and virtual time. A name or label that `core.names` does not know raises ValueError."""

from ..core.effects import Count, Gauge, Observe, Span
from ..core.names import check


class MemoryNotes:
    """Everything noted, in order, and questions about it."""

    def __init__(self) -> None:
        self.all: list[Count | Gauge | Observe | Span] = []

    def note(self, effect: Count | Gauge | Observe | Span) -> None:
        check(effect)
        self.all.append(effect)

    def total(self, name: str, **labels: str) -> float:
        """The sum of a counter over all label sets that agree with `labels`."""
        return sum(note.amount for note in self.all if isinstance(note, Count) and _fits(note, name, labels))

    def last(self, name: str, **labels: str) -> float | None:
        """A gauge's last value."""
        values = [note.value for note in self.all if isinstance(note, Gauge) and _fits(note, name, labels)]
        return values[-1] if values else None

    def samples(self, name: str, **labels: str) -> list[float]:
        return [note.value for note in self.all if isinstance(note, Observe) and _fits(note, name, labels)]

    def spans(self, name: str = "", traceparent: str = "") -> list[Span]:
        """Of this name and trace, where given."""
        return [
            note
            for note in self.all
            if isinstance(note, Span) and name in ("", note.name) and traceparent in ("", note.traceparent)
        ]


def _fits(note: Count | Gauge | Observe, name: str, labels: dict[str, str]) -> bool:
    return note.name == name and labels.items() <= dict(note.labels).items()
