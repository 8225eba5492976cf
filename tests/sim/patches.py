"""Ways to turn one rule off: each patches a method, a row or a constant for one test."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pdd.adapters import staging
from pdd.core import effects as fx
from pdd.core import events as ev
from pdd.core import messages as msg
from pdd.core import pool
from pdd.core.ids import Role, TransferId
from pdd.core.roles.course import Course
from pdd.core.roles.held import Held, Wrote
from pdd.core.roles.relaying import Pen
from pdd.core.roles.router import Router
from pdd.core.roles.worker import Worker

Patch = Callable[[pytest.MonkeyPatch], None]


def instead(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """`make(original)` takes the place of a method."""
    return lambda patching: patching.setattr(owner, name, make(getattr(owner, name)))


def nothing(owner: Any, name: str, result: Any = None) -> Patch:
    return lambda patching: patching.setattr(owner, name, lambda *args, **named: result)


def row(machine: Any, phase: Any, kind: type, action: str) -> Patch:
    return lambda patching: patching.setitem(machine.ROWS, (phase, kind), action)


def both(*patches: Patch) -> Patch:
    def patch(patching: pytest.MonkeyPatch) -> None:
        for one in patches:
            one(patching)

    return patch


def method(owner: Any, name: str, function: Any) -> Patch:
    return lambda patching: patching.setattr(owner, name, function, raising=False)


# -- epochs and casts --------------------------------------------------------------------------------------------------


def any_epoch(original: Any) -> Any:
    def current(self: Router, sender: Any, request: Any, epoch: Any, counter: str) -> Course | None:
        course = self.courses.get(request)
        if counter == "pdd_tokens_dropped_total" and course and course.role_of(sender):
            return course
        return original(self, sender, request, epoch, counter)

    return current


def any_sender(original: Any) -> Any:
    def current(self: Router, sender: Any, request: Any, epoch: Any, counter: str) -> Course | None:
        course = self.courses.get(request)
        return course if course and course.epoch == epoch else None

    return current


def relay_for_strangers(original: Any) -> Any:
    return lambda self, sender, written: original(self, sender, written) or Role.RELAY


def without_epoch(text: str) -> TransferId:
    request, _, name, incarnation = text.rsplit(".", 3)
    return TransferId(f"{request}.0.{name}.{incarnation}")


def kv_of_any_epoch(original: Any) -> Any:
    def checked(self: staging.Staging, transfer: Any, epoch: Any, *more: Any) -> Any:
        owner = self._reserved.get(transfer)
        return original(self, transfer, owner.expected.epoch if owner else epoch, *more)

    return checked


class ByName(list[Any]):
    """Peers, whatever life they are in."""

    def __contains__(self, peer: Any) -> bool:
        return any(peer.name == other.name for other in self)


def tickets_of_any_life(original: Any) -> Any:
    def peer(self: Any, sender: Any, message: Any) -> None:
        held = self.held.get(message.request)
        if isinstance(message, msg.Ticket) and held:
            message = msgspec.structs.replace(message, epoch=held.epoch)
        original(self, sender, message)

    return peer


def deaf_to_lives(original: Any) -> Any:
    """What was meant for a former life is taken."""

    def hear(self: Any, heard: ev.Heard) -> None:
        original(self, ev.Heard(heard.sender, self.me, heard.message))

    return hear


def back_to_older(original: Any) -> Any:
    def assign(self: Any, sender: Any, command: msg.Assignment) -> None:
        held = self.held.get(command.request)
        if held and command.epoch < held.epoch:
            self.forget(held)
        original(self, sender, command)

    return assign


def keep_buffer(original: Any) -> Any:
    def raise_epoch(self: Router, course: Course) -> None:
        kept = dict(course.waiting)
        original(self, course)
        course.waiting.update(kept)

    return raise_epoch


def counted_from_base(original: Any) -> Any:
    def command(*args: Any) -> msg.Assignment:
        made = original(*args)
        return msgspec.structs.replace(made, prompt_len=len(made.ids))

    return command


def taken_twice(original: Any) -> Any:
    def take(self: Course, written: msg.Written, speaker: Role) -> None:
        original(self, msgspec.structs.replace(written, start=max(written.start, len(self.out))), speaker)

    return take


# -- the pen -----------------------------------------------------------------------------------------------------------


def learn_late(self: Any, held: Held, event: Wrote) -> None:
    held.learn(event.written)


def yield_anew(self: Any, held: Any, sender: Any, message: Any) -> None:
    self._yield(held)


def close_at_yield(original: Any) -> Any:
    def give(self: Any, held: Any) -> None:
        original(self, held)
        self.emit(fx.CloseSequence(held.key))

    return give


def speak_when_whole(self: Any, held: Any) -> None:
    self._speak(held)


def no_repeated_yield(original: Any) -> Any:
    return lambda self, held: None if held.phase is Pen.YIELDED else original(self, held)


def no_end_of_pause(original: Any) -> Any:
    return lambda self, held: None if held.phase is Pen.PAUSED else original(self, held)


def cut_at_once(original: Any) -> Any:
    def consider(self: Router, course: Course) -> None:
        main = course.cast.get(Role.MAIN)
        if course.cut is None and main and self.cuts.wanted(course, self.routing.step_s, self.now):
            course.cut = True
            self.emit(self.cuts.asked())
            self._part(course, Role.MAIN, main)

    return consider


def never_at_router(what: str) -> Patch:
    def make(original: Any) -> Any:
        return lambda self, course, name, *more, **named: name != what and original(self, course, name, *more, **named)

    return instead(Router, "_every", make)


def never_at_worker(what: str) -> Patch:
    return instead(
        Worker, "every", lambda original: lambda self, held, name, s: name != what and original(self, held, name, s)
    )


def no_second_report(original: Any) -> Any:
    return lambda self, held: None if held.phase.name == "SHADOWING" else original(self, held)


def forgotten_pin(original: Any) -> Any:
    """A lease that counts for nothing: what it reads may be evicted."""

    def descend(self: pool.Pool, lease: Any, child: Any) -> None:
        lease.node = child

    return descend


# -- time and losses ---------------------------------------------------------------------------------------------------


def renewed_for_ever(original: Any) -> Any:
    def tick(self: Any) -> None:
        for held in self.held.values():
            held.renewed_at = self.now
        original(self)

    return tick


def short_lease(original: Any) -> Any:
    def tick(self: Any) -> None:
        for held in self.held.values():
            if self.now - held.renewed_at > 1.5:
                held.renewed_at = -1e9
        original(self)

    return tick


def only_gaps(original: Any) -> Any:
    def repeat(self: Router, course: Course) -> None:
        kept = course.spoken_at
        if not course.waiting:
            course.spoken_at = self.now
        original(self, course)
        course.spoken_at = kept

    return repeat


def only_the_pen(original: Any) -> Any:
    def repeat(self: Router, course: Course) -> None:
        original(self, course)
        pen = course.cast.get(course.pen)
        self._effects = [
            e for e in self._effects if not (isinstance(e, fx.Send) and isinstance(e.message, msg.Ask) and e.to != pen)
        ]

    return repeat


def no_stall(original: Any) -> Any:
    def watch(self: Router, course: Course) -> None:
        course.progress_at = self.now
        original(self, course)

    return watch


def forget_at_end(original: Any) -> Any:
    def wrote(self: Any, held: Any, event: Wrote) -> None:
        original(self, held, event)
        if held.finish:
            self.forget(held)

    return wrote


def pen_from_messages(original: Any) -> Any:
    return lambda self, sender, held: original(self, sender, msgspec.structs.replace(held, fence=None))
