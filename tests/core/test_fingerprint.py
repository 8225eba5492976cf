"""Case 10: a worker of another model, revision, KV shape or protocol is refused by the name of what differs, and the others serve on."""

import pytest

from pdd.core import messages as msg
from pdd.core.effects import Count, Effect, Reject, Send
from pdd.core.events import Heard, RequestSubmitted, TimerFired
from pdd.core.fingerprint import differing, fingerprint_of
from pdd.core.ids import Peer, RequestId, Role
from pdd.core.messages import EngineLoad
from pdd.core.roles.router import Router
from pdd.core.routing import RoutingSettings
from pdd.core.sampling import Sampling
from pdd.core.singular import SingularSettings
from pdd.core.timeouts import TimeOuts

OURS = {"weights": "aa", "config": "bb", "tokenizer": "cc", "chat_template": "dd", "kv": "4x2x32", "protocol": "1"}
ME = Peer("a", Role.ROUTER, "router", 1)
P, R, M = Peer("a", Role.PREFILL, "p", 1), Peer("a", Role.RELAY, "r", 1), Peer("b", Role.MAIN, "m", 1)
STRANGER = Peer("b", Role.MAIN, "stranger", 1)


@pytest.mark.parametrize("field", list(OURS))
def test_what_differs_is_named(field: str) -> None:
    ours, theirs = fingerprint_of(OURS), fingerprint_of({**OURS, field: "other"})
    assert differing(ours, theirs) == differing(theirs, ours) == (field,)
    assert differing(ours, ours) == ()


def test_a_field_that_only_one_has_differs_and_a_name_without_fields_is_another_model() -> None:
    assert differing(fingerprint_of(OURS), fingerprint_of({**OURS, "lora": "x"})) == ("lora",)
    assert differing("scripted", "other") == ("model",)
    assert differing("scripted", fingerprint_of({"weights": "aa"})) == ("model", "weights")


def beat(router: Router, worker: Peer, fingerprint: str, number: int = 1) -> list[Effect]:
    card = msg.WorkerCard(fingerprint, 4096, 8, 16)
    return router.handle(Heard(worker, None, msg.Beat(number, card, (), EngineLoad())), 0.0)


def test_a_stranger_is_refused_once_by_field_and_requests_are_served_without_it() -> None:
    ours = fingerprint_of(OURS)
    router = Router(ME, ours, TimeOuts(), RoutingSettings(), singular=SingularSettings())
    for worker in (P, R, M):
        assert not [effect for effect in beat(router, worker, ours) if isinstance(effect, Count)]
    other = fingerprint_of({**OURS, "weights": "zz", "protocol": "2"})
    said = [effect for number in (1, 2) for effect in beat(router, STRANGER, other, number)]
    assert [effect.labels for effect in said if isinstance(effect, Count)] == [
        (("worker", "stranger"), ("field", "weights")),
        (("worker", "stranger"), ("field", "protocol")),
    ]
    effects = submit_many(router)
    receivers = {effect.to for effect in effects if isinstance(effect, Send)}
    assert M in receivers and STRANGER not in receivers
    assert not [effect for effect in effects if isinstance(effect, Reject)]


def test_where_all_are_strangers_nobody_is_asked() -> None:
    router = Router(ME, fingerprint_of(OURS), TimeOuts(), RoutingSettings(), singular=SingularSettings())
    for worker in (P, R, M):
        beat(router, worker, fingerprint_of({**OURS, "kv": "4x1x64"}))
    assert not [effect for effect in submit_many(router) if isinstance(effect, Send)]


def submit_many(router: Router) -> list[Effect]:
    """Eight requests, and the time that planning them takes."""
    effects = []
    for number in range(8):
        asked = RequestSubmitted(RequestId(str(number)), tuple(range(40)), Sampling(max_tokens=9))
        effects += router.handle(asked, 0.0)
    return effects + router.handle(TimerFired(), 1.0)
