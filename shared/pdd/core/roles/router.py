"""The router: routes each request, stitches its outputs for the client, and is the arbiter when anybody is lost.

It holds every token already streamed. It alone raises epochs; it takes outputs of the current epoch only, each index once, in
order. Whatever it sends is repeated until answered, and whatever it took is given back however a request ends.
"""

from ..blocks import HASH_BLOCK, block_hashes, pack
from ..effects import Complete, Count, Deliver, Effect, Gauge, Reject, Send
from ..errors import IllegalEvent
from ..events import DrainWanted, Event, Heard, RequestEnded, RequestSubmitted, TimerFired
from ..ids import Epoch, Peer, RequestId, Role
from ..line_owner import LineOwner
from ..messages import (
    Accepted,
    Ask,
    Beat,
    Cut,
    CutAnswer,
    Found,
    HeldRequest,
    KvDelivered,
    LineWants,
    Lookup,
    Message,
    Refused,
    Released,
    Renew,
    StopSending,
    Taken,
    Tokens,
    Written,
    Yield,
)
from ..routing import Route, RoutingSettings
from ..sampling import Finish
from ..singular import SingularSettings
from ..timeouts import STALL_GROWTH, TimeOuts
from . import casting, telling, warming
from .course import Course, Phase
from .cuts import Cuts
from .fleet import Fleet
from .holdings import Holdings


class Router:
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

    # -- the machine --------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        return self._next_tick

    @property
    def idle(self) -> bool:
        return not self.courses and not self.holdings

    @property
    def inflight(self) -> int:
        """Requests with a client."""
        return sum(course.phase is not Phase.LEARNING for course in self.courses.values())

    def start(self, now: float) -> list[Effect]:
        return self.handle(TimerFired(), now)

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.now, self._effects = now, []
        match event:
            case TimerFired():
                pass
            case Heard(sender, to, message):
                self._hear(sender, to, message)
            case RequestSubmitted():
                self._submit(event)
            case RequestEnded(request, reason):
                course = self.courses.get(request)  # none: it ended by itself at the same moment
                if course and course.phase is not Phase.LEARNING:
                    if reason == "stop":
                        self._tell_end(course, Finish("stop"))
                    self._end(course, reason)
            case DrainWanted():
                self.draining = True
                for course in [one for one in self.courses.values() if one.warm_up]:
                    self._end_learning(course)
            case _:
                raise IllegalEvent(f"{type(event).__name__} at {self.me}")
        if now >= self._next_tick:
            self._next_tick = now + self.timeouts.tick_s
            self._tick()
        return self._effects

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, course: Course, to: Peer, message: Message) -> None:
        self.emit(Send(to, message, course.asked.traceparent))

    def drop(self, reason: str, name: str = "pdd_messages_dropped_total") -> None:
        self.emit(Count(name, (("reason", reason),)))

    # -- admission ----------------------------------------------------------------------------------------------------

    def _submit(self, asked: RequestSubmitted) -> None:
        if problem := self._problem(asked):
            self.emit(Count("pdd_requests_refused_total", (("reason", problem.code),)))
            return self.emit(problem)
        course = Course(asked, self.now, progress_at=self.now, spoken_at=self.now, served_at=self.now)
        course.report.prompt_tokens = len(asked.ids)
        self.courses[asked.request] = course
        self.emit(Gauge("pdd_inflight_requests", self.inflight))
        course.blocks = block_hashes(asked.ids, self.fleet.fingerprint, asked.cache_salt)
        for other in warming.outlived(self.courses.values(), course):
            self._end_learning(other)
        index = next(iter(self.fleet.live(Role.INDEX, self.now)), None)
        if index is None or not course.blocks:
            return self._plan(course, "new")
        self.send(course, index.peer, Lookup(asked.request, pack(course.blocks)))

    def _problem(self, asked: RequestSubmitted) -> Reject | None:
        """Bad input and overload are answered at once, before anything is held."""
        if self.draining:
            return Reject(asked.request, 503, "draining", "this router is shutting down", retry_after_s=1.0)
        if self.inflight >= self.max_inflight:
            text = f"{self.max_inflight} requests are in flight, the limit"
            return Reject(asked.request, 429, "overloaded", text, retry_after_s=1.0)
        return casting.impossible(asked, self.fleet, self.now)

    # -- planning -----------------------------------------------------------------------------------------------------

    def _found(self, message: Found) -> None:
        course = self.courses.get(message.query)
        if course is None or course.phase is not Phase.LOOKING:
            return self.drop("late_lookup")
        for name, incarnation, blocks in message.holders:
            seen = self.fleet.workers.get(name)
            if seen and seen.peer.incarnation == incarnation:
                course.hits[seen.peer] = blocks * HASH_BLOCK
        self._plan(course, "new")

    def _plan(self, course: Course, why: str) -> None:
        """A new epoch with a new cast, from what the client already has."""
        self._leave(course)
        course.epoch = Epoch(course.epoch + 1)
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

    def _leave(self, course: Course) -> None:
        """Forget the epoch's state. Members of the old cast are released; a new command to one of them supersedes."""
        for peer in course.cast.values():
            self._release(course.request, peer, course.epoch)
        self._relieve(course)
        course.cast, course.whole, course.acked, course.marks = {}, {}, {}, {}
        course.waiting.clear()
        course.ending = None
        course.yielded, course.main_spoke, course.cut, course.cut_denied = None, False, None, False
        course.delivered = False
        course.sent_at.clear()

    def _command(self, course: Course) -> None:
        """The commands of this epoch, to whoever has not answered."""
        for role, peer in course.cast.items():
            if peer not in course.acked and not (course.hosted and role is Role.RELAY):
                self.send(course, peer, casting.command(course, role, self.policy, self.relay_bound))

    # -- messages -----------------------------------------------------------------------------------------------------

    def _hear(self, sender: Peer, to: Peer | None, message: Message) -> None:
        if to not in (None, self.me):
            return self.drop("incarnation")
        match message:
            case Beat():
                self._beat(sender, message)
            case Found():
                self._found(message)
            case Released(request, epoch):
                self.holdings.released(request, sender, epoch)
            case Tokens(written, own):
                for part in written:
                    if course := self._current(sender, part.request, part.epoch, "pdd_tokens_dropped_total"):
                        self._tokens(course, sender, part, own)
            case Accepted() | Refused() | Yield() | CutAnswer() | KvDelivered():
                if course := self._current(sender, message.request, message.epoch, "pdd_messages_dropped_total"):
                    self._answer(course, sender, message)
            case LineWants() if self.fleet.knows(sender):
                self._effects += self.line_owner.handle(sender, message, self.now)
            case _:
                self.drop("unfit")

    def _current(self, sender: Peer, request: RequestId, epoch: Epoch, counter: str) -> Course | None:
        course = self.courses.get(request)
        if course is None:
            self.drop("ended", counter)
        elif course.epoch != epoch:
            self.drop("epoch", counter)
        elif course.role_of(sender) is None:
            self.drop("cast", counter)
        else:
            return course
        return None

    def _answer(self, course: Course, sender: Peer, message: Message) -> None:
        match message:
            case Accepted(have=have, beat=beat):
                course.acked.setdefault(sender, beat)
                self.holdings.accepted(course.request, sender)
                course.progress_at = self.now
                if not course.warm_up:  # its report has gone out
                    course.report.hit[sender.role.value] = have
            case Refused(reason=reason):
                self._refused(course, sender, reason)
            case Yield(fence=fence, written=written):
                self.send(course, sender, Taken(course.request, course.epoch))
                if course.yielded is None and Role.MAIN in course.cast:
                    course.yielded, course.pen, course.report.fence = message, Role.MAIN, fence
                    course.take(written, Role.RELAY)
                    self._deliver(course)
            case CutAnswer(promised=promised):
                course.cut, course.cut_denied = promised, not promised
                if promised and (main := course.cast.get(Role.MAIN)):
                    self._part(course, Role.MAIN, main)
            case KvDelivered():
                course.progress_at = self.now
                if not course.warm_up:
                    telling.delivered(course, sender, message)
                if course.delivered and course.main_spoke:
                    self._free_front(course)

    def _refused(self, course: Course, sender: Peer, reason: str) -> None:
        """A refusal is an answer: who does not matter leaves the cast; else plan again without the refuser."""
        if course.warm_up:
            return self._end_learning(course)
        self.emit(Count("pdd_requests_refused_total", (("reason", "worker"),)))
        course.report.refusals.append(f"{sender.name}: {reason}")
        course.skip[sender.name] = None
        role = course.role_of(sender)
        assert role is not None
        if course.phase is Phase.RUNNING and course.matters(role):
            self._plan(course, "refused")
        else:
            self._part(course, role, sender)

    def _part(self, course: Course, role: Role, peer: Peer) -> None:
        """A member leaves and the epoch goes on."""
        del course.cast[role]
        self._release(course.request, peer, course.epoch)
        self._relieve(course, role)
        prefill = course.cast.get(Role.PREFILL)
        if prefill and role is not Role.PREFILL:
            self.send(course, prefill, StopSending(course.request, course.epoch, peer))

    def _tokens(self, course: Course, sender: Peer, written: Written, own: bool) -> None:
        if course.phase is not Phase.RUNNING:
            return  # the client has everything: MD learns
        role = course.speaker(sender, written)
        assert role is not None
        if role is not Role.PREFILL and written.stop > course.base + 1:
            course.whole[role] = None
        if role is Role.MAIN and own and not course.main_spoke:
            course.main_spoke, course.pen = True, Role.MAIN
        course.take(written, role if own else course.before(role))
        self._deliver(course)

    def _deliver(self, course: Course) -> None:
        while run := course.next_in_order():
            written, speaker = run
            course.progress_at = course.spoken_at = self.now
            if speaker is not Role.PREFILL or course.plans == 1:
                course.served_at = self.now  # else plan after plan could fail, and each bring one output
            if speaker is Role.PREFILL:
                self._relieve(course, Role.PREFILL)
            course.spoke(speaker, written.start, written.stop, self.now - course.submitted_at)
            self.emit(Deliver(course.request, written, speaker))
            if written.finish:
                return self._finish(course, written.finish, speaker)
            if speaker is Role.MAIN:
                self._free_front(course)
        if course.ending and course.ending[0] == len(course.out):
            self._finish(course, course.ending[1], course.pen)

    def _free_front(self, course: Course) -> None:
        """MD has spoken in order: nobody before it is needed any more. P is heard out, if it is quick, about the transfer."""
        prefill = course.cast.get(Role.PREFILL)
        heard = course.delivered or self._every(course, "front", self.timeouts.retry_s)
        for role in (Role.PREFILL, Role.RELAY):
            if course.cast.get(role) == prefill and not heard:
                continue
            if peer := course.cast.pop(role, None):
                self._release(course.request, peer, course.epoch)
                self._relieve(course, role)

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

    def _every(self, course: Course, what: str, period_s: float, *, at_once: bool = False) -> bool:
        """True at most once each period, the first time after one, or at once."""
        last = course.sent_at.setdefault(what, -period_s if at_once else self.now)
        if self.now - last < period_s:
            return False
        course.sent_at[what] = self.now
        return True

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _release(self, request: RequestId, peer: Peer, epoch: Epoch) -> None:
        self.emit(self.holdings.release(request, peer, epoch, self.now))

    def _end(self, course: Course, outcome: str) -> None:
        for peer in course.cast.values():
            self._release(course.request, peer, course.epoch)
        self._relieve(course)
        del self.courses[course.request]
        self.emit(Gauge("pdd_inflight_requests", self.inflight))
        self.emit(Count("pdd_requests_total", (("outcome", outcome),)))
        self.emit(telling.request_span(course, outcome, self.now))

    def _finish(self, course: Course, finish: Finish, speaker: Role) -> None:
        if speaker is Role.RELAY:
            kept = "feature" if casting.unmovable(course, self.fleet, self.now) else "survival"
            reason = "before_fence" if Role.MAIN in course.cast else "cut" if course.cut else kept
            self.emit(Count("pdd_ended_on_relay_total", (("reason", reason),)))
        self._tell_end(course, finish)
        learning, effects = self.cuts.served(course, speaker)
        for effect in effects:
            self.emit(effect)
        if learning:
            self._let_main_learn(course)
        elif speaker is not Role.RELAY or not self._warms_up(course):
            return self._end(course, finish.reason)
        self.emit(Gauge("pdd_inflight_requests", self.inflight))

    def _tell_end(self, course: Course, finish: Finish) -> None:
        if course.report.token_at_s:
            for effect in telling.measured(course, self.now):
                self.emit(effect)
        self.emit(Complete(course.request, finish, course.report))

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
        self._leave(course)
        course.epoch = Epoch(course.epoch + 1)
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
        if course.warm_up:
            self.emit(warming.ended(course))
        self._end(course, "length" if len(course.out) >= course.asked.sampling.max_tokens else "stop")

    def _give_up(self, course: Course) -> None:
        text = "the request could not be recovered: no worker made progress in time"
        self.emit(Reject(course.request, 503, "recovery_exhausted", text, retry_after_s=1.0))
        self._end(course, "recovery_exhausted")
