"""The router's third part: what beats and time tell. A loss, a stall or a request that vanished leads to a new plan.

A message that needs an answer is repeated until it has one. Every wait is bounded: by a new plan, or by the request's end.
"""

from ..effects import Count, Send
from ..ids import Epoch, Peer, RequestId, Role
from ..messages import Ask, Beat, Cut, HeldRequest, Renew
from ..timeouts import STALL_GROWTH
from .course import Course, Phase
from .finishing import Finisher


class Watcher(Finisher):
    # -- beats --------------------------------------------------------------------------------------------------------

    def _beat(self, sender: Peer, beat: Beat) -> None:
        known = self.fleet.knows(sender)
        if not self.fleet.hear(sender, beat, self.now):
            return self.drop("incarnation")
        if not known:
            for field in self.fleet.refuses(sender, beat.card):
                self.emit(Count("pdd_workers_refused_total", (("worker", sender.name), ("field", field))))
        mine = [held for held in beat.held if held.router.name == self.me.name]
        for held in mine:
            self._held(sender, held)
        if mine:
            current = {held.request: self._epoch_of(held.request) for held in mine}
            self.emit(Send(sender, Renew(current)))
        self._missing(sender, beat, {held.request for held in mine})

    def _epoch_of(self, request: RequestId) -> Epoch:
        course = self.courses.get(request)
        return course.epoch if course else Epoch(0)

    def _held(self, sender: Peer, held: HeldRequest) -> None:
        """The pen and the progress are learned from beats too: a lost Yield or frame shows here."""
        course = self.courses.get(held.request)
        if course is None or course.epoch != held.epoch:
            return
        role = course.role_of(sender)
        if role is None:
            return
        if course.hosted and role is Role.PREFILL:
            role = Role.RELAY
        if held.whole and role is not Role.PREFILL:
            course.whole[role] = None
        if held.fence is not None and role is Role.RELAY and Role.MAIN in course.cast:
            course.pen = Role.MAIN
        if course.marks.get(sender) != held.progress:
            course.marks[sender] = held.progress
            course.progress_at = self.now

    def _missing(self, sender: Peer, beat: Beat, listed: set[RequestId]) -> None:
        """A request that was accepted and is no longer listed is lost there."""
        for request in self.holdings.of(sender):
            course = self.courses.get(request)
            if course is None or request in listed or course.phase is not Phase.RUNNING:
                continue
            role, accepted = course.role_of(sender), course.acked.get(sender)
            if role and accepted is not None and beat.number > accepted and course.matters(role):
                self._plan(course, f"forgotten_{role.value}")

    # -- time ---------------------------------------------------------------------------------------------------------

    def _stood_still(self, seconds: float) -> None:
        """This process was stopped for so long: what others said meanwhile waits unheard, so nobody is lost by that alone."""
        if seconds < self.timeouts.beat_s:
            return
        self.fleet.forgive(seconds, self.now)
        for course in self.courses.values():
            course.progress_at = min(self.now, course.progress_at + seconds)

    def _tick(self) -> None:
        for course in list(self.courses.values()):
            match course.phase:
                case Phase.LOOKING:
                    if self.now - course.submitted_at > self.timeouts.lookup_s:
                        self.emit(Count("pdd_index_lookups_total", (("outcome", "timeout"),)))
                        self._plan(course, "new")
                case Phase.WAITING:
                    self._wait(course)
                case Phase.RUNNING:
                    self._watch(course)
                case Phase.LEARNING:
                    self._learn(course)
        self._effects += [*self.holdings.tick(self.now), *self.line_owner.tick(self.now)]

    def _wait(self, course: Course) -> None:
        if self.now - course.served_at > self.timeouts.give_up_s:
            self._give_up(course)
        elif self.now - course.planned_at > self.timeouts.replan_s:
            self._plan(course, "nobody")

    def _watch(self, course: Course) -> None:
        """Losses, stalls, gaps and unanswered messages of one running request."""
        for role, peer in list(course.cast.items()):
            if not self.fleet.lost(peer, self.now):
                continue
            if course.matters(role):
                return self._plan(course, f"lost_{role.value}")
            self._part(course, role, peer)
        patience = self.timeouts.stall_s * STALL_GROWTH ** min(course.plans, 4)
        if self.now - course.progress_at > patience:
            if self.now - course.served_at > self.timeouts.give_up_s:
                return self._give_up(course)
            return self._plan(course, "stall")
        self._repeat(course)
        self._consider_cut(course)

    def _repeat(self, course: Course) -> None:
        if self._every(course, "command", self.timeouts.retry_s):
            self._command(course)
        quiet = self.now - course.spoken_at
        if quiet > (self.timeouts.ask_gap_s if course.waiting else self.timeouts.ask_silence_s):
            if self._every(course, "ask", self.timeouts.retry_s):
                for peer in course.cast.values():
                    self.send(course, peer, Ask(course.request, course.epoch, len(course.out)))
        main = course.cast.get(Role.MAIN)
        if course.yielded and main and not course.main_spoke and self._every(course, "yield", self.timeouts.retry_s):
            self.send(course, main, course.yielded)

    def _consider_cut(self, course: Course) -> None:
        if course.cut is None:
            relay = self.fleet.workers.get(course.cast[Role.RELAY].name) if Role.RELAY in course.cast else None
            step_s = (relay.load.step_s if relay else 0.0) or self.routing.step_s
            if not self.cuts.wanted(course, step_s, self.now):
                return
            course.cut = False
            self.emit(self.cuts.asked())
        relay_peer = course.cast.get(Role.RELAY)
        if relay_peer and Role.MAIN in course.cast and not course.cut_denied:
            if self._every(course, "cut", self.timeouts.retry_s, at_once=True):
                self.send(course, relay_peer, Cut(course.request, course.epoch))
