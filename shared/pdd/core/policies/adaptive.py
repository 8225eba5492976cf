from dataclasses import dataclass, field

from .base import Progress
from .catch_up import CatchUp


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Catch-Up while RLD has room, One-Shot under pressure, and between them by what is measured: the fuller RLD, the longer a
    stall is taken for its place.

    The stall of a Yield now is what MD has left, without what a round trip holds, at the rate it extends.
    """

    pressure: float = 0.75
    steps: float = 1.0  # of RLD: the stall that an empty one's place is worth
    otherwise: CatchUp = field(default_factory=CatchUp)

    def due(self, progress: Progress) -> bool:
        room = 1 - progress.relay_load / self.pressure
        return room <= 0 or self.otherwise.due(progress) or (progress.measured and self._worth_it(progress, room))

    def _worth_it(self, progress: Progress, room: float) -> bool:
        left = max(0.0, progress.backlog - progress.rtt_s / progress.step_s)
        return left / progress.extend_tokens_per_s <= self.steps * progress.step_s / room
