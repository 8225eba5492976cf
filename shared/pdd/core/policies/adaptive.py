from dataclasses import dataclass, field

from .base import Progress
from .catch_up import CatchUp


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Spare capacity at RLD: Catch-Up, no stall. Pressure: One-Shot, the shortest use of RLD."""

    pressure: float = 0.75
    otherwise: CatchUp = field(default_factory=CatchUp)

    def due(self, progress: Progress) -> bool:
        return progress.relay_load >= self.pressure or self.otherwise.due(progress)
