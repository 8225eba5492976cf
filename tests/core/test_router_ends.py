"""The router by its laws: who matters, what is cut, what is refused, and how a request ends."""

from typing import Any

import pytest

from pdd.core import messages as msg
from pdd.core.effects import Complete, Gauge, Reject
from pdd.core.events import DrainWanted, RequestEnded, RequestSubmitted
from pdd.core.ids import Peer, RequestId, Role
from pdd.core.sampling import Finish, Sampling
from pdd.core.singular import SingularSettings
from tests.core.router_rig import (
    E1,
    M1,
    M2,
    ME,
    P1,
    P2,
    R1,
    WHOLE,
    Q,
    Rig,
    T,
    frame,
    receivers,
    running,
    sent,
)

# -- who matters -------------------------------------------------------------------------------------------------------


def test_main_decode_may_go_while_the_relay_speaks() -> None:
    rig = running()
    rig.hear(P1, frame(0, 1))
    rig.workers.remove(M1)
    new = rig.wait(T.suspect_s + 0.3)
    assert sent(new, msg.StopSending) == [(P1, msg.StopSending(Q, E1, M1))]
    assert rig.router.courses[Q].epoch == 1


def test_a_pen_learned_from_a_beat_makes_main_decode_matter() -> None:
    rig = running(P1, R1, M1, M2)
    rig.hear(P1, frame(0, 1))
    main = rig.router.courses[Q].cast[Role.MAIN]
    rig.beat({R1: (msg.HeldRequest(Q, E1, ME, "yielded", True, 9, 9, 2),)})
    rig.workers.remove(main)
    rig.wait(T.suspect_s + 0.3)
    assert rig.router.courses[Q].epoch == 2


def test_a_refusal_of_who_matters_plans_without_the_refuser() -> None:
    rig = Rig(P1, R1, M1, P2)
    rig.submit()
    refuser = rig.router.courses[Q].cast[Role.PREFILL]
    new = rig.hear(refuser, msg.Refused(Q, E1, "full"))
    assert receivers(new, msg.StartPrefill) == [P2 if refuser == P1 else P1]


def test_a_refusal_of_main_decode_leaves_the_relay_at_work() -> None:
    rig = running()
    new = rig.hear(M1, msg.Refused(Q, E1, "full"))
    assert receivers(new, msg.Release) == [M1] and receivers(new, msg.StopSending) == [P1]
    rig.hear(P1, frame(0, 1))
    rig.hear(R1, frame(1, 30))
    assert rig.delivered() == WHOLE


def test_outputs_that_main_decode_repeats_free_nobody_before_it() -> None:
    """It answers for RLD, whose frames do not arrive; RLD still has the pen."""
    rig = running()
    rig.hear(P1, frame(0, 1))
    new = rig.hear(M1, frame(0, 4, own=False))
    assert rig.delivered() == WHOLE[:4] and not receivers(new, msg.Release)
    assert rig.router.courses[Q].report.spoke[-1][0] == Role.RELAY.value
    rig.hear(P1, msg.KvDelivered(Q, E1, M1, 40, 640, 0.1))
    new = rig.hear(M1, frame(4, 5))
    assert receivers(new, msg.Release) == [P1, R1]


# -- cuts --------------------------------------------------------------------------------------------------------------


def cutting(**settings: Any) -> Rig:
    """The line is so slow that RLD will be done first."""
    rig = Rig(singular=SingularSettings(**{"cap": 1.0, "gap": 2.0, **settings}))
    rig.submit()
    rig.accept()
    rig.hear(P1, frame(0, 1))
    return rig


def test_the_relay_is_asked_for_a_cut_until_it_answers() -> None:
    rig = cutting()
    assert receivers(rig.wait(1.2), msg.Cut) == [R1, R1, R1]
    new = rig.hear(R1, msg.CutAnswer(Q, E1, promised=True))
    assert receivers(new, msg.Release) == [M1] and receivers(new, msg.StopSending) == [P1]
    assert not receivers(rig.wait(1.2), msg.Cut)


def test_a_denied_cut_sends_nobody_away() -> None:
    rig = cutting()
    rig.wait(0.2)
    new = rig.hear(R1, msg.CutAnswer(Q, E1, promised=False))
    assert not receivers(new, msg.Release) and not receivers(rig.wait(1.2), msg.Cut)


def test_the_guard_withholds_cuts_and_lets_main_decode_learn() -> None:
    rig = cutting(cap=0.0)
    assert not receivers(rig.wait(1.0), msg.Cut)
    rig.hear(R1, frame(1, 30))
    assert [type(end) for end in rig.ends()] == [Complete]
    assert rig.router.inflight == 0 and receivers(rig.effects, msg.Release) == [R1]
    rig.wait(31.0)
    assert {P1, M1} <= set(receivers(rig.effects, msg.Release))


@pytest.mark.parametrize("drains_first", [True, False])
def test_a_router_that_drains_waits_for_nothing_that_main_decode_would_only_learn(drains_first: bool) -> None:
    rig = cutting(cap=0.0)
    if drains_first:
        rig.do(DrainWanted())
    rig.hear(R1, frame(1, 30))
    if not drains_first:
        assert rig.router.courses
        rig.do(DrainWanted())
    assert not rig.router.courses and {P1, R1, M1} <= set(receivers(rig.effects, msg.Release))
    assert [type(end) for end in rig.ends()] == [Complete]


# -- refusals ----------------------------------------------------------------------------------------------------------


def refusal(rig: Rig, prompt: int = 40, outputs: int = 30) -> Reject:
    ids = tuple(5 for _ in range(prompt))
    (end,) = [e for e in rig.do(RequestSubmitted(RequestId("x"), ids, Sampling(outputs))) if isinstance(e, Reject)]
    assert RequestId("x") not in rig.router.courses and not receivers(rig.effects, msg.StartPrefill)
    return end


def test_without_workers_it_is_503_and_try_again() -> None:
    for workers in ((P1,), (R1,), (P2, P1)):
        end = refusal(Rig(*workers))
        assert (end.status, end.code) == (503, "no_worker") and end.retry_after_s


def test_too_long_is_400_and_names_prompt_wish_and_limit() -> None:
    end = refusal(Rig(), prompt=4000, outputs=200)
    assert (end.status, end.code, end.retry_after_s) == (400, "context_length_exceeded", None)
    assert all(number in end.message for number in ("4000", "200", "4096"))


def test_full_is_429_and_try_again() -> None:
    rig = Rig(max_inflight=0)
    end = refusal(rig)
    assert (end.status, end.code) == (429, "overloaded") and end.retry_after_s


def test_a_draining_router_is_503() -> None:
    rig = Rig()
    rig.do(DrainWanted())
    assert (refusal(rig).status, refusal(rig).code) == (503, "draining")


def test_a_worker_of_another_model_is_none() -> None:
    rig = Rig()
    rig.workers = []
    for peer in (P1, R1, M1):
        rig.hear(
            Peer(peer.site, peer.role, peer.name, 2),
            msg.Beat(1, msg.WorkerCard("g", 4096, 8, 16), (), msg.EngineLoad()),
            None,
        )
    assert refusal(rig).code == "no_worker"


# -- ends --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["gone", "stop"])
def test_a_client_that_is_done_frees_everybody_at_once(reason: str) -> None:
    rig = running()
    new = rig.do(RequestEnded(Q, reason))
    assert receivers(new, msg.Release) == [P1, R1, M1]
    assert [end.finish.reason for end in rig.ends() if isinstance(end, Complete)] == (
        ["stop"] if reason == "stop" else []
    )
    assert rig.router.inflight == 0


def test_an_end_without_outputs_of_its_own_ends_the_request() -> None:
    """An engine that can write no more says so after its last output."""
    rig = running()
    rig.hear(P1, frame(0, 1))
    rig.hear(R1, msg.Tokens((msg.Written(Q, E1, 4, (), finish=Finish("length")),)))
    assert not rig.ends()
    rig.hear(R1, msg.Tokens((msg.Written(Q, E1, 1, tuple(WHOLE[1:4])),)))
    assert rig.delivered() == WHOLE[:4]
    assert [end.finish for end in rig.ends() if isinstance(end, Complete)] == [Finish("length")]


# -- alignment ---------------------------------------------------------------------------------------------------------


def test_hits_at_prefill_and_main_decode_and_their_gap_are_told_with_each_request() -> None:
    """Of 40 prompt tokens P had 32, MD 16."""
    rig = Rig(P1, M1)
    rig.submit(route="P-MD")
    for peer, have in ((P1, 32), (M1, 16)):
        rig.hear(peer, msg.Accepted(Q, E1, have, rig.number))
    rig.hear(P1, frame(0, 1))
    told = rig.hear(M1, frame(1, 30))
    gauges = {(e.name, *dict(e.labels).values()): e.value for e in told if isinstance(e, Gauge)}
    assert gauges["pdd_hit_ratio", "prefill"] == pytest.approx(0.8)
    assert gauges["pdd_hit_ratio", "main_decode"] == pytest.approx(0.4)
    assert gauges["pdd_hit_gap_ratio",] == pytest.approx(0.4)


# -- who is let go when ------------------------------------------------------------------------------------------------


def direct() -> Rig:
    """P has spoken token 0, MD tokens 1 and 2: quicker than P's word of the transfer."""
    rig = Rig(P1, M1)
    rig.submit(route="P-MD")
    rig.accept()
    rig.hear(P1, frame(0, 1))
    rig.hear(M1, frame(1, 3))
    return rig


def test_prefill_is_heard_out_about_a_transfer_that_was_quicker_than_its_word_of_it() -> None:
    rig = direct()
    assert receivers(rig.effects, msg.Release) == []
    told = rig.hear(P1, msg.KvDelivered(Q, E1, M1, 40, 640, 0.001))
    assert receivers(told, msg.Release) == [P1]
    assert rig.router.courses[Q].report.transfers == [
        {"to": "main_decode", "way": "wan", "tokens": 40, "bytes": 640, "seconds": 0.001}
    ]


def test_a_word_of_the_transfer_that_is_lost_keeps_prefill_no_longer_than_a_repeat_would_take() -> None:
    rig = direct()
    rig.now += T.retry_s
    assert receivers(rig.hear(M1, frame(3, 4)), msg.Release) == [P1]
