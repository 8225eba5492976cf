"""What storms have been through: every row that a worker took, every fault at every stage of a request. And what never was."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..core.ids import RequestId
from ..core.roles.worker import Worker
from .house import WORKERS, House
from .stages import Stage, stage

Row = tuple[str, str, str]  # role, phase, event or message


ROWS: dict[Row, str] = {
    (role.value, phase.name, kind.__name__): action
    for role, machine in WORKERS.items()
    for (phase, kind), action in machine.ROWS.items()
}


@dataclass(slots=True)
class Coverage:
    rows: Counter[Row] = field(default_factory=Counter)
    faults: Counter[tuple[str, Stage]] = field(default_factory=Counter)

    def watch(self, machine: object) -> None:
        """Count the rows that this life of a worker takes. Once is enough."""
        if not isinstance(machine, Worker) or "_row" in vars(machine):
            return
        look_up, role = machine._row, machine.me.role.value

        def counted(held: Any, kind: type) -> str | None:
            name = look_up(held, kind)
            if name is not None:
                phase: Enum = held.phase
                self.rows[role, phase.name, kind.__name__] += 1
            return name

        setattr(machine, "_row", counted)  # noqa: B010  a method of this one life

    def strike(self, fault: str, house: House, requests: Iterable[RequestId]) -> None:
        """`fault` happens now: note at which stage it meets each request."""
        for request in requests:
            met = stage(house, request)
            if met:
                self.faults[fault, met] += 1

    def add(self, other: "Coverage") -> None:
        self.rows.update(other.rows)
        self.faults.update(other.faults)

    # -- the report ---------------------------------------------------------------------------------------------------

    def taken(self) -> int:
        return len(self.rows)

    def untaken(self, *, late: bool = False) -> list[Row]:
        """Rows that act; with `late`, those that only let an event pass which lost its race."""
        return [row for row, action in ROWS.items() if row not in self.rows and action.startswith("late") is late]

    def unmet(self) -> list[tuple[str, Stage]]:
        """Stages at which a fault that was seen at all never met a request."""
        kinds = {kind: None for kind, _ in self.faults}
        return [(kind, met) for kind in kinds for met in Stage if (kind, met) not in self.faults]
