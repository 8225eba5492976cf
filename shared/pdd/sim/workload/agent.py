"""Synthetic coding agents: a shared system prompt, tool results and questions that grow the history, think time, sub-agents.

The history holds the answers as they came, so a server's prefix cache sees what a real agent's would.
"""

from collections.abc import Sequence
from random import Random

import msgspec

from .book import Book
from .draw import Draw
from .session import Session, Turn

CHILDREN_AT_MOST = 4


class AgentLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`kinds` of agents have `kinds` system prompts (tools included); all sessions of a kind share theirs."""

    kinds: int = 2
    system: Draw = Draw(4000)
    first: Draw = Draw(1500, 0.8)  # the task, with the files it names
    added: Draw = Draw(600, 1.2)  # a tool's result or the user's next words
    outputs: Draw = Draw(216, 1.2, 1, 4000)
    turns: Draw = Draw(20, 0.7, 1, 200)
    think_s: Draw = Draw(10, 1.0, 0.2, 300)
    delegates: float = 0.0  # share of turns that start a sub-agent
    context_tokens: int = 1 << 17  # beyond it the history is compacted to its first quarter

    def __post_init__(self) -> None:
        if self.kinds < 1 or not 0 <= self.delegates <= 1:
            raise ValueError("agent: kinds must be at least 1, delegates between 0 and 1")


class AgentSession:
    def __init__(self, name: str, number: int, load: AgentLoad, book: Book, seed: int, depth: int = 0) -> None:
        self.name = name
        self.think_s = 0.0
        self._load, self._book, self._seed, self._depth = load, book, seed, depth
        self._rng = Random(f"{seed} {name}")
        self._next_passage = load.kinds + (number << 16)
        self._turns_left = load.turns.tokens(self._rng) if depth == 0 else self._rng.randint(1, 4)
        system = book.passage(number % load.kinds, _tokens_of_kind(load, number % load.kinds))
        self._history = system + self._words(load.first.tokens(self._rng))
        self._begun = False

    def next(self, answer: Sequence[int]) -> Turn | None:
        if self._turns_left <= 0:
            return None
        self._turns_left -= 1
        if self._begun:
            self._history += (*answer, *self._words(self._load.added.tokens(self._rng)))
            self.think_s = self._load.think_s.draw(self._rng)
        self._begun = True
        outputs = self._load.outputs.tokens(self._rng)
        if len(self._history) + outputs > self._load.context_tokens:
            kept = self._load.context_tokens // 4
            self._history = self._history[:kept] + self._words(self._load.added.tokens(self._rng))
        return Turn(self._history, outputs, self._children())

    def _children(self) -> tuple[Session, ...]:
        if self._depth or not self._turns_left or self._rng.random() >= self._load.delegates:
            return ()
        return tuple(
            AgentSession(
                f"{self.name}.{self._turns_left}.{i}", self._new_number(), self._load, self._book, self._seed, 1
            )
            for i in range(self._rng.randint(1, CHILDREN_AT_MOST))
        )

    def _new_number(self) -> int:
        self._next_passage += 1
        return self._next_passage

    def _words(self, count: int) -> tuple[int, ...]:
        return self._book.passage(self._new_number(), count)


def _tokens_of_kind(load: AgentLoad, kind: int) -> int:
    return load.system.tokens(Random(f"kind {kind}"))
