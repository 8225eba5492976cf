"""The router's second part: how a request ends, for its client in `_tell_end` and for its workers in `_end`.

Between the two, MD may learn what it lacked: from a transfer that was under way when RLD wrote the last output, or by a warm-up.
"""

from ..effects import Complete, Count, Gauge, Reject
from ..ids import Role
from ..sampling import Finish
from . import casting, telling, warming
from .course import Course, Phase
from .planning import Planner


class Finisher(Planner):
    def _finish(self, course: Course, finish: Finish, speaker: Role) -> None:
        if speaker is Role.RELAY:
            kept = "feature" if casting.unmovable(course, self.fleet, self.now) else "survival"
            reason = "before_fence" if Role.MAIN in course.cast else "cut" if course.cut else kept
            self.emit(Count("pdd_ended_on_relay_total", (("reason", reason),)))
        self._tell_end(course, finish)
        learning, effects = self.cuts.served(course, speaker)
        for effect in effects:
            self.emit(effect)
        if learning and not self.draining:
            self._let_main_learn(course)
        elif speaker is not Role.RELAY or not self._warms_up(course):
            return self._end(course, finish.reason)
        self.emit(Gauge("pdd_inflight_requests", self.inflight))

    def _give_up(self, course: Course) -> None:
        text = "the request could not be recovered: no worker made progress in time"
        self.emit(Reject(course.request, 503, "recovery_exhausted", text, retry_after_s=1.0))
        self._end(course, "recovery_exhausted")

    def _tell_end(self, course: Course, finish: Finish) -> None:
        if course.report.token_at_s:
            for effect in telling.measured(course, self.now):
                self.emit(effect)
        self.emit(Complete(course.request, finish, course.report))

    def _end(self, course: Course, outcome: str) -> None:
        for peer in course.cast.values():
            self._release(course.request, peer, course.epoch)
        self._relieve(course)
        del self.courses[course.request]
        self.emit(Gauge("pdd_inflight_requests", self.inflight))
        self.emit(Count("pdd_requests_total", (("outcome", outcome),)))
        self.emit(telling.request_span(course, outcome, self.now))

    # -- MD learns, nobody waits --------------------------------------------------------------------------------------

    def _let_main_learn(self, course: Course) -> None:
        """P and MD go on without RLD and without a client. A hosting P stays, as P."""
        course.phase, course.planned_at = Phase.LEARNING, self.now
        hosted = course.hosted
        relay = course.cast.pop(Role.RELAY)
        self._relieve(course, Role.RELAY)
        if not hosted:
            self._release(course.request, relay, course.epoch)

    def _warms_up(self, course: Course) -> bool:
        """Begin an epoch of P and MD alone, if that is switched on and worth it."""
        wanted = self.cuts.singular.given.warm_up and not self.draining
        cast = warming.cast_for(course, self.fleet, self.now) if wanted else None
        if cast is None:
            return False
        self._raise_epoch(course)
        course.phase, course.planned_at, course.warm_up = Phase.LEARNING, self.now, True
        course.base, course.named, course.cast = 0, cast, casting.by_role(cast)
        self._command(course)
        return True

    def _learn(self, course: Course) -> None:
        lost = any(self.fleet.lost(peer, self.now) for peer in course.cast.values())
        if lost or self.cuts.learned(course, self.now):
            self._end_learning(course)
        elif course.warm_up and self._every(course, "command", self.timeouts.retry_s):
            self._command(course)

    def _end_learning(self, course: Course) -> None:
        self.emit(warming.ended(course))
        self._end(course, "length" if len(course.out) >= course.asked.sampling.max_tokens else "stop")
