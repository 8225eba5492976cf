"""The router's first part: who plays what. It holds all that a router knows, names casts, and takes members out of them.

A plan is a new epoch with a new cast, from what the client already has. Epochs rise in `_raise_epoch` and nowhere else.
"""

from ..effects import Count, Effect, Send
from ..ids import Epoch, Peer, RequestId, Role
from ..line_owner import LineOwner
from ..messages import Message, StopSending
from ..routing import Route, RoutingSettings
from ..singular import SingularSettings
from ..timeouts import TimeOuts
from . import casting, telling
from .course import Course, Phase
from .cuts import Cuts
from .fleet import Fleet
from .holdings import Holdings


class Planner:
    def __init__(
        self,
        me: Peer,
        fingerprint: str,
        timeouts: TimeOuts,
        routing: RoutingSettings,
        *,
        max_inflight: int = 256,
        policy: str = "one_shot",
        relay_bound: int = 0,
        singular: SingularSettings = SingularSettings(),  # noqa: B008
    ) -> None:
        self.me, self.timeouts, self.routing = me, timeouts, routing
        self.max_inflight, self.policy, self.relay_bound = max_inflight, policy, relay_bound
        self.cuts = Cuts(singular)
        self.fleet = Fleet(fingerprint, timeouts.suspect_s)
        self.courses: dict[RequestId, Course] = {}
        self.holdings = Holdings(timeouts)
        self.line_owner = LineOwner()
        self.draining = False
        self.now = 0.0
        self._next_tick = 0.0
        self._effects: list[Effect] = []

    @property
    def inflight(self) -> int:
        """Requests with a client."""
        return sum(course.phase is not Phase.LEARNING for course in self.courses.values())

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, course: Course, to: Peer, message: Message) -> None:
        self.emit(Send(to, message, course.asked.traceparent))

    def drop(self, reason: str, name: str = "pdd_messages_dropped_total") -> None:
        self.emit(Count(name, (("reason", reason),)))

    def _every(self, course: Course, what: str, period_s: float, *, at_once: bool = False) -> bool:
        """True at most once each period, the first time after one, or at once."""
        last = course.sent_at.setdefault(what, -period_s if at_once else self.now)
        if self.now - last < period_s:
            return False
        course.sent_at[what] = self.now
        return True

    # -- a cast -------------------------------------------------------------------------------------------------------

    def _plan(self, course: Course, why: str) -> None:
        """A new epoch with a new cast, from what the client already has."""
        self._raise_epoch(course)
        course.plans += 1
        course.planned_at = course.progress_at = self.now
        found = casting.routes_for(course, self.fleet, self.routing, self.now)
        if why != "new":
            self.emit(Count("pdd_replans_total", (("reason", why),)))
        if not found:
            course.phase = Phase.WAITING
            course.skip.clear()
            return
        route = found[0]
        course.phase, course.named = Phase.RUNNING, route.cast
        course.base = len(course.out)
        course.cast = casting.by_role(route.cast)
        course.pen = next(iter(course.cast))
        course.crosses_at, course.rtt_s = self.now + route.crossing_s, route.rtt_s
        self._explain(course, found)
        self._assign(course)
        self._command(course)

    def _explain(self, course: Course, found: list[Route]) -> None:
        telling.explain(course, found)
        self.emit(Count("pdd_routes_total", (("route", found[0].name),)))
        self.emit(telling.route_span(course, self.now))

    def _raise_epoch(self, course: Course) -> None:
        """The one place where it rises. Nothing of the old epoch stays; its cast is released, or superseded by a new command."""
        for peer in course.cast.values():
            self._release(course.request, peer, course.epoch)
        self._relieve(course)
        course.cast, course.whole, course.acked, course.marks = {}, {}, {}, {}
        course.waiting.clear()
        course.ending = None
        course.yielded, course.main_spoke, course.cut, course.cut_denied = None, False, None, False
        course.delivered = False
        course.sent_at.clear()
        course.epoch = Epoch(course.epoch + 1)

    def _command(self, course: Course) -> None:
        """The commands of this epoch, to whoever has not answered."""
        for role, peer in course.cast.items():
            if peer not in course.acked and not (course.hosted and role is Role.RELAY):
                self.send(course, peer, casting.command(course, role, self.policy, self.relay_bound))

    def _part(self, course: Course, role: Role, peer: Peer) -> None:
        """A member leaves and the epoch goes on."""
        del course.cast[role]
        self._release(course.request, peer, course.epoch)
        self._relieve(course, role)
        prefill = course.cast.get(Role.PREFILL)
        if prefill and role is not Role.PREFILL:
            self.send(course, prefill, StopSending(course.request, course.epoch, peer))

    def _release(self, request: RequestId, peer: Peer, epoch: Epoch) -> None:
        self.emit(self.holdings.release(request, peer, epoch, self.now))

    # -- work accounted for, before a beat shows it -------------------------------------------------------------------

    def _assign(self, course: Course) -> None:
        for role, peer in course.cast.items():
            first = role is Role.PREFILL or Role.PREFILL not in course.cast
            tokens = len(course.asked.ids) + course.base - course.hits.get(peer, 0) if first else 0
            course.assigned.append((role, peer, tokens))
            self.fleet.assign(peer, tokens, 1)

    def _relieve(self, course: Course, role: Role | None = None) -> None:
        """Take back what `_assign` accounted: of one role, or of all."""
        for entry in [entry for entry in course.assigned if role in (None, entry[0])]:
            course.assigned.remove(entry)
            self.fleet.assign(entry[1], -entry[2], -1)
