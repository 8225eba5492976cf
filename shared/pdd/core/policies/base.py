"""What a hand-over policy may look at, once MD has said that it is ready."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Progress:
    """Output counts as RLD knows them when it is asked. `reports`: how often MD has said how far it is."""

    written: int
    known_by_main: int
    reports: int
    fruitless: int  # reports in a row that left no smaller backlog than any before
    relay_load: float  # running sequences / places, 0 to 1
    step_s: float = 0.0  # of RLD, measured; 0: not yet, and so below
    extend_tokens_per_s: float = 0.0  # of MD for this request, since its first report
    rtt_s: float = 0.0  # to MD's site

    @property
    def backlog(self) -> int:
        return max(0, self.written - self.known_by_main)

    @property
    def measured(self) -> bool:
        return bool(self.step_s and self.extend_tokens_per_s)


class HandoverPolicy(Protocol):
    def due(self, progress: Progress) -> bool:
        """Yield now?"""
