from dataclasses import dataclass

from .base import Progress


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Go on while MD extends behind; yield when the backlog is small, or after so many reports of MD."""

    backlog: int = 2  # tokens: one extend slice beside the running batch hides them
    reports: int = 8

    def due(self, progress: Progress) -> bool:
        return progress.backlog <= self.backlog or progress.reports >= self.reports
