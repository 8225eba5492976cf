"""A request goes only to workers that can do what it needs; what cannot move stays on RLD, and is counted."""

import pytest

from pdd.core.effects import Complete, Count, Reject, Send
from pdd.core.events import Heard, RequestSubmitted
from pdd.core.features import GRAMMAR
from pdd.core.ids import Epoch, Peer, RequestId, Role
from pdd.core.messages import Assignment, Beat, EngineLoad, Tokens, WorkerCard, Written
from pdd.core.roles.router import Router
from pdd.core.routing import RoutingSettings
from pdd.core.sampling import Finish, Sampling
from pdd.core.timeouts import TimeOuts

ROUTER = Peer("a", Role.ROUTER, "router", 1)
P, RLD, MD = (Peer("a", Role.PREFILL, "p", 1), Peer("a", Role.RELAY, "r", 1), Peer("b", Role.MAIN, "m", 1))
PROMPT = tuple(range(3, 30))
BOUND = Sampling(max_tokens=5, grammar='start: "a"')


def router(able: list[Peer]) -> Router:
    """All three are alive; these can bind an answer."""
    machine = Router(ROUTER, "f", TimeOuts(), RoutingSettings())
    machine.start(0.0)
    for peer in (P, RLD, MD):
        card = WorkerCard("f", 4096, 8, 64, "127.0.0.1:1", (GRAMMAR,) if peer in able else ())
        machine.handle(Heard(peer, None, Beat(1, card, (), EngineLoad(total_pages=9))), 0.0)
    return machine


def cast(machine: Router, sampling: Sampling) -> list[Peer]:
    """Who is told to do something."""
    effects = machine.handle(RequestSubmitted(RequestId("q"), PROMPT, sampling), 0.1)
    return [effect.to for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Assignment)]


@pytest.mark.parametrize(
    ("able", "told"),
    [([P, RLD, MD], {P, MD}), ([P, RLD], {P, RLD}), ([P, MD], {P, MD}), ([MD], {MD}), ([RLD], {RLD}), ([RLD, MD], {MD})],
)  # fmt: skip
def test_a_bound_answer_is_written_by_those_who_can_bind_it(able: list[Peer], told: set[Peer]) -> None:
    found = set(cast(router(able), BOUND))
    assert found <= set(able) and told <= found
    assert MD in cast(router(able), Sampling(max_tokens=5)), "a free one goes where it would"


@pytest.mark.parametrize("able", [[], [P]])
def test_where_no_speaker_can_the_request_is_refused_at_once_and_counted(able: list[Peer]) -> None:
    effects = router(able).handle(RequestSubmitted(RequestId("q"), PROMPT, BOUND), 0.1)
    [refused] = [effect for effect in effects if isinstance(effect, Reject)]
    assert (refused.status, refused.code) == (400, "unsupported_feature") and "grammar" in refused.message
    assert Count("pdd_requests_refused_total", (("reason", "unsupported_feature"),)) in effects


def test_what_ends_on_rld_because_it_cannot_move_is_counted_as_that() -> None:
    machine = router([P, RLD])
    assert set(cast(machine, BOUND)) == {P, RLD}
    written = Written(RequestId("q"), Epoch(1), 0, (4, 5, 6, 7, 8), (), Finish("length"))
    effects = machine.handle(Heard(RLD, ROUTER, Tokens((written,))), 0.2)
    assert any(isinstance(effect, Complete) for effect in effects)
    assert Count("pdd_ended_on_relay_total", (("reason", "feature"),)) in effects
