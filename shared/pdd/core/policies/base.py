"""What a hand-over policy may look at, once MD has said that it is ready."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """Output counts as RLD knows them when it is asked. `reports`: how often MD has said how far it is."""

    written: int
    known_by_main: int
    reports: int
    last_backlog: int  # at the report before this one; large where there was none
    relay_load: float  # running sequences / places, 0 to 1

    @property
    def backlog(self) -> int:
        return max(0, self.written - self.known_by_main)

    @property
    def shrinking(self) -> bool:
        """What is left is on its way, or costs MD as long as RLD takes to write as much again: waiting gains nothing more."""
        return self.backlog < self.last_backlog


class HandoverPolicy(Protocol):
    def due(self, progress: Progress) -> bool:
        """Yield now?"""
