from dataclasses import dataclass

from .base import Progress


@dataclass(frozen=True, slots=True)
class OneShot:
    """Yield as soon as MD holds the prompt: shortest use of RLD, one stall while MD extends over all eager tokens."""

    def due(self, progress: Progress) -> bool:
        return True
