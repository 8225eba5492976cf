"""Composes a step: every speaking decode, one token each, then slices of extend and prefill under a budget of `chunk_tokens`.

Extend and prefill are one thing: compute [computed, target). Those whose client waits for the next output come first, then those
whose client another still serves, the nearest to its hand-over first, then who has read nothing yet, first come, first served. No
slice leaves less than a quarter chunk behind: a tail is merged into the slice before it, so a step computes less than a chunk and a
quarter beside its decodes. What others leave of a step is filled, down to a sixteenth: bench/tail_chunks shows why. While somebody
is at a hand-over, most steps are composed without the others: `undisturbed`, and docs/decisions/a-step-for-the-hand-over.md.
"""

from collections.abc import Iterable
from typing import NamedTuple

from .steps import Sequence, Slice, StepPlan

NEAR = 8  # ids behind RLD: a hand-over comes with its next token (policies/catch_up.py)


class Due(NamedTuple):
    """Ids [sequence.computed, target) are to be computed; `speaks`: a token is drawn at the target."""

    sequence: Sequence
    target: int
    speaks: bool

    @property
    def tokens(self) -> int:
        return self.target - self.sequence.computed

    @property
    def decodes(self) -> bool:
        return self.speaks and self.tokens == 1

    @property
    def rank(self) -> tuple[int, int]:
        """Lower goes first: handed over; shadowed, who has least left first; new."""
        if self.sequence.outputs == 0:
            return 2, 0
        return (0, 0) if self.speaks else (1, self.tokens)

    @property
    def at_handover(self) -> bool:
        """Its client waits for a token of ours, or will in a step or two."""
        return not self.decodes and (self.rank[0] == 0 or (self.rank[0] == 1 and self.tokens <= NEAR))


def undisturbed(due: list[Due]) -> list[Due]:
    """Of `due` what a step may hold while somebody is at a hand-over, so that it is short: decodes, and who is at one."""
    return [one for one in due if one.decodes or one.at_handover]


def slice_tokens(tokens: int, budget: int, chunk_tokens: int) -> int:
    """How many of `tokens` to compute now, where `budget` of the step's chunk are left."""
    if budget <= 0:
        return 0
    if tokens <= budget or tokens - budget < chunk_tokens // 4:
        return tokens
    return budget if budget >= chunk_tokens // 16 else 0


def compose(due: Iterable[Due], chunk_tokens: int) -> StepPlan:
    """`due` in the order of arrival. The plan is empty only if `due` is."""
    waiting = list(due)
    slices = [Slice(one.sequence, one.sequence.computed, one.target, True) for one in waiting if one.decodes]
    rest = [one for one in waiting if not one.decodes]
    budget = chunk_tokens
    for one in sorted(rest, key=lambda one: one.rank):  # stable
        taken = slice_tokens(one.tokens, budget, chunk_tokens)
        if taken:
            start = one.sequence.computed
            slices.append(Slice(one.sequence, start, start + taken, one.speaks and taken == one.tokens))
            budget -= taken
    return StepPlan(tuple(slices))
