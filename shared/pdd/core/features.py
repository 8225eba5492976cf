"""What a request may need and not every worker can: a worker names what it can on its card, and takes part only in such requests."""

from .messages import WorkerCard
from .sampling import Sampling

GRAMMAR = "grammar"


def needed(sampling: Sampling) -> tuple[str, ...]:
    return (GRAMMAR,) if sampling.grammar else ()


def able(card: WorkerCard, sampling: Sampling) -> bool:
    return all(feature in card.features for feature in needed(sampling))
