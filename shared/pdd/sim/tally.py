"""Notes of a simulated fleet: counters are added up, everything else is dropped."""

from collections import Counter

from ..core.effects import Count


class Tally:
    """`counts`: by (name, labels)."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()

    def count(self, effect: Count) -> None:
        self.counts[effect.name, effect.labels] += effect.amount  # type: ignore[assignment]

    def drop(self, effect: object) -> None: ...

    def total(self, name: str, **labels: str) -> float:
        """Over all label sets that agree with `labels`."""
        return sum(n for (key, has), n in self.counts.items() if key == name and labels.items() <= dict(has).items())

    def by(self, name: str, label: str) -> dict[str, float]:
        found: dict[str, float] = {}
        for (key, labels), amount in self.counts.items():
            if key == name:
                value = dict(labels)[label]
                found[value] = found.get(value, 0) + amount
        return found
