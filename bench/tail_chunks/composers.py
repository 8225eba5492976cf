"""What ours is compared with: two ways to cut prefill into steps that leave tails. Both decode first, as ours does."""

from collections.abc import Iterable

from pdd.core.schedule import Due, compose
from pdd.core.steps import Slice, StepPlan


def one_chunk(due: Iterable[Due], chunk_tokens: int) -> StepPlan:
    """The naive chunker: a step is one chunk of one request, and what a prompt leaves beyond whole chunks is a step of its own."""
    return _filled(due, chunk_tokens, most=1)


def packed(due: Iterable[Due], chunk_tokens: int) -> StepPlan:
    """A step is filled to the last token, by the next requests' beginnings, however small: tails vanish where others wait."""
    return _filled(due, chunk_tokens, most=None)


def _filled(due: Iterable[Due], chunk_tokens: int, most: int | None) -> StepPlan:
    waiting = list(due)
    slices = [Slice(one.sequence, one.sequence.computed, one.target, True) for one in waiting if one.decodes]
    left = chunk_tokens
    for one in [one for one in waiting if not one.decodes][:most]:
        taken, start = min(left, one.tokens), one.sequence.computed
        if taken:
            slices.append(Slice(one.sequence, start, start + taken, one.speaks and taken == one.tokens))
            left -= taken
    return StepPlan(tuple(slices))


COMPOSERS = {"one chunk a step": one_chunk, "packed to the last token": packed, "ours": compose}
