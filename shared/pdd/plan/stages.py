"""How far a request has come, told from outside by what the machines hold; and which fault met which stage."""

from enum import StrEnum
from typing import Any

from ..core.ids import RequestId, Role
from ..core.roles.course import Course
from ..core.roles.course import Phase as CoursePhase
from ..core.roles.router import Router
from .house import House


class Stage(StrEnum):
    """In the order in which a relayed request passes them."""

    LOOKING = "asks the index"
    WAITING = "nobody to plan with"
    QUEUED = "commands are out"
    PREFILL = "P computes"
    TRANSFER = "KV on its way, nobody speaks from it"
    RELAY = "RLD speaks, KV on its way to MD"
    CATCH_UP = "RLD speaks, MD is whole"
    YIELDED = "RLD has yielded, MD does not speak"
    MAIN = "MD speaks"
    ENDING = "the last token is written"
    LEARNING = "the client has all, MD learns"
    RELEASING = "the client has all, workers are told"


def _router(house: House) -> Router:
    router: Any = house.processes["router"].node.machine
    assert isinstance(router, Router)
    return router


def member(house: House, request: RequestId, role: Role) -> str | None:
    """Who plays a role in a request's present epoch, by name."""
    course = _router(house).courses.get(request)
    peer = course.cast.get(role) if course else None
    return peer.name if peer else None


def stage(house: House, request: RequestId) -> Stage | None:
    """None: not submitted, refused, or over."""
    router = _router(house)
    course = router.courses.get(request)
    if course is None:
        told = any(of == request for of, _ in router.holdings.releasing)
        return Stage.RELEASING if told else None
    match course.phase:
        case CoursePhase.LOOKING:
            return Stage.LOOKING
        case CoursePhase.WAITING:
            return Stage.WAITING
        case CoursePhase.LEARNING:
            return Stage.LEARNING
    return _running(_phases(house, course))


def _phases(house: House, course: Course) -> dict[Role, str]:
    """What each member that lives and has taken its part says."""
    found = {}
    for role, peer in course.cast.items():
        process = house.processes[peer.name]
        machine: Any = process.node.machine
        held = machine.held.get(course.request) if process.me == peer and process.node.alive else None
        if held is not None and held.epoch == course.epoch:
            found[role] = held.phase.name
    return found


def _running(phases: dict[Role, str]) -> Stage:
    said = phases.values()
    main, relay = phases.get(Role.MAIN), phases.get(Role.RELAY)
    if "FINISHED" in said:
        return Stage.ENDING
    if main == "SPEAKING":
        return Stage.MAIN
    if "YIELDED" in said:
        return Stage.YIELDED
    if relay in ("RELAYING", "PAUSED"):
        return Stage.CATCH_UP if main == "SHADOWING" else Stage.RELAY
    if phases.get(Role.PREFILL) in ("SPOKEN", "SENT"):
        return Stage.TRANSFER
    return Stage.PREFILL if "COMPUTING" in said else Stage.QUEUED
