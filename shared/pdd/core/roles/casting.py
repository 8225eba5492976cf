"""From a request and a fleet to a cast: what cannot be served, which routes there are, what each member is told."""

from ..effects import Reject
from ..events import RequestSubmitted
from ..features import able, needed
from ..ids import Peer, Role
from ..messages import Assignment, Cast, PrepareMain, PrepareRelay, StartPrefill
from ..routing import Candidate, Route, RoutingSettings, routes
from .course import Course
from .fleet import Fleet

COMMANDS: dict[Role, type[Assignment]] = {
    Role.PREFILL: StartPrefill,
    Role.RELAY: PrepareRelay,
    Role.MAIN: PrepareMain,
}


def by_role(cast: Cast) -> dict[Role, Peer]:
    """In the order in which the pen passes."""
    members = zip(COMMANDS, (cast.prefill, cast.relay, cast.main), strict=True)
    return {role: peer for role, peer in members if peer}


def impossible(asked: RequestSubmitted, fleet: Fleet, now: float) -> Reject | None:
    """Why no worker alive could serve it; None if one could."""
    prefills, relays, mains = (fleet.live(role, now) for role in COMMANDS)
    speakers = [*relays, *mains]
    if not speakers or not (prefills or mains):
        return Reject(asked.request, 503, "no_worker", "no worker is ready to serve this model", retry_after_s=1.0)
    prompt, outputs = len(asked.ids), asked.sampling.max_tokens
    limit = max(seen.card.max_context for seen in speakers)
    if prompt + outputs > limit:
        text = f"the prompt's {prompt} tokens and max_tokens {outputs} exceed the context limit of {limit} tokens"
        return Reject(asked.request, 400, "context_length_exceeded", text)
    if not any(able(seen.card, asked.sampling) for seen in speakers):
        text = f"no worker here can do what the request needs: {', '.join(needed(asked.sampling))}"
        return Reject(asked.request, 400, "unsupported_feature", text)
    return None


def unmovable(course: Course, fleet: Fleet, now: float) -> bool:
    """MDs are there, and none can do what the request needs: it stays where it is."""
    mains = fleet.live(Role.MAIN, now)
    return bool(mains) and not any(able(seen.card, course.asked.sampling) for seen in mains)


def routes_for(course: Course, fleet: Fleet, given: RoutingSettings, now: float) -> list[Route]:
    """Best first, from the ids the client already has. A forced route is taken where it exists."""
    known = len(course.asked.ids) + len(course.out)
    sampling = course.asked.sampling

    def able_to(role: Role, context: int) -> list[Candidate]:
        return [
            one
            for one in fleet.candidates(role, now, course.hits)
            if one.card.max_context >= context and one.peer.name not in course.skip and able(one.card, sampling)
        ]

    prefills = able_to(Role.PREFILL, known + 1)
    relays, mains = able_to(Role.RELAY, course.context), able_to(Role.MAIN, course.context)
    found = routes(known, prefills, relays, mains, given)
    return [route for route in found if route.name == course.asked.route] or found


def command(course: Course, role: Role, policy: str, relay_bound: int) -> Assignment:
    """The prompt and what the client has of the outputs; limits and seeds count from the prompt in every epoch."""
    asked = course.asked
    return COMMANDS[role](
        request=course.request,
        epoch=course.epoch,
        cast=course.named,
        ids=(*asked.ids, *course.out[: course.base]),
        prompt_len=len(asked.ids),
        sampling=asked.sampling,
        cache_salt=asked.cache_salt,
        traceparent=asked.traceparent,
        policy=policy,
        handover_after=asked.handover_after,
        relay_bound=relay_bound,
        rtt_s=course.rtt_s,
        warm_up=course.warm_up,
    )
