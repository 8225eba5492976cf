"""Warm-up: once RLD has served a client alone, what P holds of the prompt and MD lacks crosses while nobody waits for it.

It is an epoch of its own, with P and MD and no client: its KV comes after all others on the line. Workers take it only with room
to spare and give it up first; the conversation's next turn, which sends all that is missing itself, ends it too.
"""

from collections.abc import Iterable

from ..blocks import HASH_BLOCK
from ..effects import Count, Effect
from ..features import able
from ..ids import Role
from ..messages import Cast
from .course import Course, Phase
from .fleet import Fleet


def cast_for(course: Course, fleet: Fleet, now: float) -> Cast | None:
    """The P that has computed the prompt, and the MD that was to have it, else the one that has most of it. None: not worth it."""
    p = course.named.prefill
    if p is None or fleet.lost(p, now) or Role.MAIN in course.whole:
        return None
    mains = [
        seen.peer
        for seen in fleet.live(Role.MAIN, now)
        if able(seen.card, course.asked.sampling) and seen.card.max_context >= course.context
    ]
    if not mains:
        return None
    named = course.named.main
    m = named if named in mains else max(mains, key=lambda peer: course.hits.get(peer, 0))
    lacks = len(course.asked.ids) - course.hits.get(m, 0)
    return Cast(p, None, m) if lacks >= HASH_BLOCK else None


def outlived(courses: Iterable[Course], by: Course) -> list[Course]:
    """What MD learns of a prompt that this new request continues: its own transfer brings what is missing, and once will do."""
    return [
        one
        for one in courses
        if one.phase is Phase.LEARNING
        and one.asked.cache_salt == by.asked.cache_salt
        and 0 < len(one.blocks) <= len(by.blocks)
        and one.blocks[-1] == by.blocks[len(one.blocks) - 1]
    ]


def ended(course: Course) -> Effect:
    return Count("pdd_warm_ups_total", (("outcome", "learned" if Role.MAIN in course.whole else "given_up"),))
