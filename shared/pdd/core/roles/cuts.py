"""Singular traffic, as one router handles it: when to ask RLD for a cut, and whether a served request's transfer goes on.

The guard and its reasons are core/singular.py. Only RLD, which holds the pen, can agree to a cut before it is done.
"""

from ..effects import Count, Effect, Gauge
from ..ids import Role
from ..singular import Singular, SingularSettings, finishes_first
from .course import Course


class Cuts:
    def __init__(self, given: SingularSettings) -> None:
        self.singular = Singular(given)

    def wanted(self, course: Course, step_s: float, now: float) -> bool:
        """Will RLD be done before the KV has crossed, and may that transfer be cut?"""
        if Role.RELAY not in course.cast or Role.MAIN not in course.cast or Role.MAIN in course.whole:
            return False
        if course.pen is Role.MAIN or course.asked.handover_after:
            return False
        left = course.asked.sampling.max_tokens - len(course.out)
        return finishes_first(left, step_s, course.crosses_at - now) and self.singular.why_not() is None

    def asked(self) -> Effect:
        self.singular.ended(was_cut=True)
        return Count("pdd_cuts_total", (("kind", "predicted"),))

    def served(self, course: Course, speaker: Role) -> tuple[bool, list[Effect]]:
        """The client has everything. True: RLD was first, and the transfer goes on so that MD learns."""
        effects = self._compare_hits(course)
        crossing = Role.MAIN in course.cast and Role.MAIN not in course.whole and Role.PREFILL in course.cast
        if speaker is not Role.RELAY or not crossing:
            if course.cut is None:
                self.singular.ended(was_cut=False)
            return False, effects
        why_not = self.singular.why_not()
        self.singular.ended(was_cut=why_not is None)
        if why_not is None:
            return False, [*effects, Count("pdd_cuts_total", (("kind", "finished"),))]
        return True, [*effects, Count("pdd_cuts_withheld_total", (("reason", why_not),))]

    def _compare_hits(self, course: Course) -> list[Effect]:
        hit = course.report.hit
        if Role.PREFILL.value not in hit or Role.MAIN.value not in hit:
            return []
        self.singular.served(len(course.asked.ids), hit[Role.PREFILL.value], hit[Role.MAIN.value])
        at = ((Role.PREFILL, self.singular.at_prefill), (Role.MAIN, self.singular.at_main))
        ratios = [Gauge("pdd_hit_ratio", share, (("role", role.value),)) for role, share in at]
        return [*ratios, Gauge("pdd_hit_gap_ratio", self.singular.gap)]

    def learned(self, course: Course, now: float) -> bool:
        """Has MD what it lacked, or will it never have it?"""
        late = now - course.planned_at > self.singular.given.patience_s
        return late or Role.MAIN in course.whole or not {Role.PREFILL, Role.MAIN} <= course.cast.keys()
