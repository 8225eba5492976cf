from dataclasses import dataclass

from .base import Progress


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Go on while MD extends behind; yield when the backlog is small or no longer shrinks, or after so many reports of MD.

    Each round leaves `extend seconds per token / seconds per RLD step` of the backlog (0.07 in the published figures: 300 -> 20
    -> 1.3 tokens), so a few rounds are enough. What a round trip holds can never be caught up with. Where several requests share
    MD's slices, many reports in a row bring one of them nothing; its client does not mind, for RLD speaks.
    """

    backlog: int = 8  # tokens: one slice beside the running batch
    fruitless: int = 16  # reports in a row
    reports: int = 64

    def due(self, progress: Progress) -> bool:
        caught_up = progress.backlog <= self.backlog
        return caught_up or progress.fruitless >= self.fruitless or progress.reports >= self.reports
