"""What a hand-over policy may look at."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """Output counts at RLD, when MD is ready. `reports`: how often MD has said how far it is."""

    written: int
    known_by_main: int
    reports: int

    @property
    def backlog(self) -> int:
        return max(0, self.written - self.known_by_main)


class HandoverPolicy(Protocol):
    def due(self, progress: Progress) -> bool:
        """Yield now?"""
