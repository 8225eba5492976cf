"""The router: routes each request, stitches its outputs for the client, and is the arbiter when anybody is lost.

It holds every token already streamed. It alone raises epochs; it takes outputs of the current epoch only, each index once, in
order. Whatever it sends is repeated until answered, and whatever it took is given back however a request ends.

Its parts, each on the one before: planning.py names casts, finishing.py ends requests, watching.py hears beats and time. Here:
admission, messages, outputs in order.
"""

from ..blocks import HASH_BLOCK, block_hashes, pack
from ..effects import Count, Deliver, Effect, Gauge, Reject
from ..errors import IllegalEvent
from ..events import DrainWanted, Event, Heard, RequestEnded, RequestSubmitted, TimerFired
from ..ids import Epoch, Peer, RequestId, Role
from ..messages import (
    Accepted,
    Beat,
    CutAnswer,
    Found,
    KvDelivered,
    LineWants,
    Lookup,
    Message,
    Refused,
    Released,
    Taken,
    Tokens,
    Written,
    Yield,
)
from ..sampling import Finish
from . import casting, telling, warming
from .course import Course, Phase
from .watching import Watcher


class Router(Watcher):
    # -- the machine --------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        return self._next_tick

    @property
    def idle(self) -> bool:
        return not self.courses and not self.holdings

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
                for course in [one for one in self.courses.values() if one.phase is Phase.LEARNING]:
                    self._end_learning(course)
            case _:
                raise IllegalEvent(f"{type(event).__name__} at {self.me}")
        if now >= self._next_tick:
            self._stood_still(now - self._next_tick)
            self._next_tick = now + self.timeouts.tick_s
            self._tick()
        return self._effects

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

    def _found(self, message: Found) -> None:
        course = self.courses.get(message.query)
        if course is None or course.phase is not Phase.LOOKING:
            return self.drop("late_lookup")
        for name, incarnation, blocks in message.holders:
            seen = self.fleet.workers.get(name)
            if seen and seen.peer.incarnation == incarnation:
                course.hits[seen.peer] = blocks * HASH_BLOCK
        self._plan(course, "new")

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

    # -- outputs, in order --------------------------------------------------------------------------------------------

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
