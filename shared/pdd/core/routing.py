"""Candidates -> routes, by predicted seconds to the second token plus the price of what a route occupies.

A score is a sum of named terms, so it can be explained. Ending on RLD is never a scored route: `P-RLD` and `RLD` exist for
survival alone, when no MD can be had.
"""

from dataclasses import dataclass, field

from .ids import Peer
from .messages import Cast, EngineLoad, LineState, WorkerCard

HOST_FULLNESS = 0.5  # of its places: a P fuller than this hosts no relay


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """Priors stand in until something was measured; prices are what a second of the client's is weighed against."""

    prefill_tokens_per_s: float = 2000.0
    line_bytes_per_s: float = 12.5e6
    near_bytes_per_s: float = 500e6
    line_rtt_s: float = 0.05
    step_s: float = 0.05
    chunk_tokens: int = 256  # the last chunk's bytes cannot hide behind prefill
    relay_price_s: float = 0.5  # occupying RLD, and the hand-over's extend
    host_price_s: float = 0.25  # P hosting the relay: its decodes slow its prefills
    full_batch_s: float = 1.0  # what a full batch at P, RLD or MD is worth
    main_alone_tokens: int = 0  # MD may prefill up to so many missing tokens itself
    unlearned_price: float = 0.3  # P does not see what MD prefills, and pays in a later turn: weight of those seconds


@dataclass(slots=True)
class Candidate:
    """One live worker as the router sees it for one request. `assigned_*`: given by this router and not in a beat yet."""

    peer: Peer
    card: WorkerCard
    load: EngineLoad = field(default_factory=EngineLoad)
    lines: dict[str, LineState] = field(default_factory=dict)
    hit: int = 0
    assigned_tokens: int = 0
    assigned_sequences: int = 0

    @property
    def fullness(self) -> float:
        return max(self.load.running, self.assigned_sequences) / max(1, self.card.max_sequences)


@dataclass(frozen=True, slots=True)
class Route:
    """`crossing_s`: predicted seconds until the KV is whole at MD, behind a relay; `rtt_s` to there."""

    name: str
    cast: Cast
    terms: dict[str, float]
    crossing_s: float = 0.0
    rtt_s: float = 0.0

    @property
    def seconds(self) -> float:
        return sum(self.terms.values())


def routes(
    prompt: int, prefills: list[Candidate], relays: list[Candidate], mains: list[Candidate], given: RoutingSettings
) -> list[Route]:
    """All routes that can be taken now, best first; survival routes only where no MD is there. Who is full would refuse."""
    prefills, relays, mains = map(_with_room, (prefills, relays, mains))
    found: list[Route] = []
    p = min(prefills, key=lambda c: sum(_prefill_terms(prompt, c, given).values()), default=None)
    r = min(relays, key=lambda c: _relay_seconds(prompt, p, c, given), default=None)
    if p is None:
        found += [_alone("MD", prompt, m, given) for m in mains]
        if not found and r:
            found = [_alone("RLD", prompt, r, given)]
    else:
        for m in mains:
            found.append(_direct(prompt, p, m, given))
            if r:
                found.append(_relayed(prompt, p, r, m, given))
            if p.fullness < HOST_FULLNESS:
                found.append(_relayed(prompt, p, p, m, given))
            if 0 < prompt - m.hit <= given.main_alone_tokens:
                found.append(_main_alone(prompt, p, m, given))
        if not mains and r:
            found.append(_relayed(prompt, p, r, None, given))
    return sorted(found, key=lambda route: route.seconds)


def _with_room(workers: list[Candidate]) -> list[Candidate]:
    return [worker for worker in workers if worker.fullness < 1] or workers


def line_seconds(sender: Candidate, receiver: Candidate, tokens: int, given: RoutingSettings) -> float:
    """For the KV of `tokens` to cross from one worker to another, behind what already waits."""
    rtt_s, queued_s, token_s = _way(sender, receiver, given)
    return rtt_s / 2 + queued_s + tokens * token_s


def _way(sender: Candidate, receiver: Candidate, given: RoutingSettings) -> tuple[float, float, float]:
    """The line between them: its round trip, seconds for what waits on it, seconds for the KV of one token."""
    near = sender.peer.site == receiver.peer.site
    prior = LineState(
        receiver.peer.site,
        given.near_bytes_per_s if near else given.line_bytes_per_s,
        0.0 if near else given.line_rtt_s,
        0,
    )
    line = sender.lines.get(receiver.peer.site, prior)
    rate = line.bytes_per_s or prior.bytes_per_s
    return line.rtt_s, line.queued_bytes / rate, sender.card.bytes_per_token / rate


def _after_prefill(prompt: int, p: Candidate, to: Candidate, terms: dict[str, float], given: RoutingSettings) -> float:
    """Seconds from the end of prefill until the KV is whole at `to`: P streams chunks while it computes.

    Its own bytes leave from when its prefill begins, behind those that wait on the line and those that P will compute before.
    """
    rtt_s, queued_s, token_s = _way(p, to, given)
    missed = max(0, prompt - to.hit)
    before_s = queued_s + _waiting(p) * token_s
    whole_s = max(before_s, terms["queue"]) + missed * token_s - terms["queue"] - terms["prefill"]
    last_s = min(missed, given.chunk_tokens, prompt - p.hit) * token_s
    return rtt_s / 2 + max(whole_s, last_s)


def _relay_seconds(prompt: int, p: Candidate | None, r: Candidate, given: RoutingSettings) -> float:
    """What tells one RLD from another: its load, and what it lacks of the prompt."""
    missed = max(0, prompt - r.hit)
    fill_s = line_seconds(p, r, missed, given) if p else missed / _prefill_rate(r, given)
    return fill_s + r.fullness * given.full_batch_s


def _waiting(worker: Candidate) -> int:
    """Prompt tokens to be computed before a new request's."""
    return max(worker.load.waiting_tokens, worker.assigned_tokens)


def _prefill_rate(worker: Candidate, given: RoutingSettings) -> float:
    return worker.load.prefill_tokens_per_s or given.prefill_tokens_per_s


def _prefill_terms(prompt: int, p: Candidate, given: RoutingSettings) -> dict[str, float]:
    rate = _prefill_rate(p, given)
    missed = max(1, prompt - p.hit)
    load_s = p.fullness * given.full_batch_s  # places run out before seconds do where prompts are hit
    return {"queue": _waiting(p) / rate, "prefill": missed / rate, "prefill_load": load_s}


def _step(worker: Candidate, given: RoutingSettings) -> float:
    return worker.load.step_s or given.step_s


def _direct(prompt: int, p: Candidate, m: Candidate, given: RoutingSettings) -> Route:
    """The line shows only where it outlasts prefill, or for the last chunk."""
    terms = _prefill_terms(prompt, p, given)
    terms["line"] = _after_prefill(prompt, p, m, terms, given)
    terms["main_step"] = _step(m, given)
    terms["main_load"] = m.fullness * given.full_batch_s
    return Route("P-MD", Cast(p.peer, None, m.peer), terms)


def _relayed(prompt: int, p: Candidate, r: Candidate, m: Candidate | None, given: RoutingSettings) -> Route:
    terms = _prefill_terms(prompt, p, given)
    if r is p:
        terms["host_price"] = given.host_price_s
    else:
        terms["near"] = _after_prefill(prompt, p, r, terms, given)
    terms["relay_step"] = _step(r, given)
    terms["relay_load"] = r.fullness * given.full_batch_s
    terms["relay_price"] = given.relay_price_s
    if m is None:
        return Route("P-RLD", Cast(p.peer, r.peer, None), terms)
    terms["main_load"] = m.fullness * given.full_batch_s
    # Among MDs the line still decides: what crosses later is not free. It weighs little against the client's seconds.
    crossing = line_seconds(p, m, max(0, prompt - m.hit), given)
    terms["line_share"] = 0.01 * crossing
    return Route("P-RLD-MD", Cast(p.peer, r.peer, m.peer), terms, crossing + terms["queue"], _way(p, m, given)[0])


def _main_alone(prompt: int, p: Candidate, m: Candidate, given: RoutingSettings) -> Route:
    """Text instead of KV: nothing crosses, P is not used and does not learn."""
    route = _alone("MD", prompt, m, given)
    learned_later = max(0, prompt - p.hit) / _prefill_rate(p, given)
    return Route("MD", route.cast, route.terms | {"unlearned": given.unlearned_price * learned_later})


def _alone(name: str, prompt: int, worker: Candidate, given: RoutingSettings) -> Route:
    rate = _prefill_rate(worker, given)
    terms = {
        "queue": _waiting(worker) / rate,
        "prefill": max(1, prompt - worker.hit) / rate,
        "load": worker.fullness * given.full_batch_s,
    }
    cast = Cast(main=worker.peer) if name == "MD" else Cast(relay=worker.peer)
    return Route(name, cast, terms)
