"""One client's conversation: a turn at a time, each knowing the answer to the one before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Turn:
    """One request. `children` start when its answer has ended; the next turn comes after they have ended and `think_s` has passed."""

    ids: tuple[int, ...]
    outputs: int  # tokens the model is to write
    children: tuple["Session", ...] = ()


class Session(Protocol):
    @property
    def name(self) -> str: ...

    def next(self, answer: Sequence[int]) -> Turn | None:
        """The next request, after `answer` (empty at first); None: the session is over."""

    @property
    def think_s(self) -> float:
        """Between the end of the last turn and the next."""


class OneTurn:
    """A request that stands alone."""

    think_s = 0.0

    def __init__(self, name: str, turn: Turn) -> None:
        self.name = name
        self._turn: Turn | None = turn

    def next(self, answer: Sequence[int]) -> Turn | None:
        turn, self._turn = self._turn, None
        return turn
