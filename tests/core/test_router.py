"""The router by its laws: whatever comes in whatever order, the client sees each output of the current epoch once, in order."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core import messages as msg
from pdd.core.effects import Complete, Count, Deliver, Effect, Reject, Send
from pdd.core.events import DrainWanted, Heard, RequestEnded, RequestSubmitted, TimerFired
from pdd.core.ids import Epoch, Peer, RequestId, Role
from pdd.core.roles.router import Router
from pdd.core.routing import RoutingSettings
from pdd.core.sampling import Finish, Sampling
from pdd.core.singular import SingularSettings
from pdd.core.timeouts import TimeOuts

Q = RequestId("q")
E1 = Epoch(1)
ME = Peer("a", Role.ROUTER, "router", 1)
P1, P2 = Peer("a", Role.PREFILL, "p1", 1), Peer("a", Role.PREFILL, "p2", 1)
R1, R2 = Peer("a", Role.RELAY, "r1", 1), Peer("a", Role.RELAY, "r2", 1)
M1, M2 = Peer("b", Role.MAIN, "m1", 1), Peer("b", Role.MAIN, "m2", 1)
CARD = msg.WorkerCard("f", 4096, 8, 16)
T = TimeOuts()
PROMPT = tuple(range(5, 45))
WHOLE = [900 + i for i in range(30)]


class Rig:
    """A router that has heard its workers beat, and all it has asked for."""

    def __init__(self, *workers: Peer, **settings: Any) -> None:
        routing = RoutingSettings(line_bytes_per_s=100.0, relay_price_s=0.1)  # the line is slow: RLD is worth it
        self.router = Router(ME, "f", T, routing, **settings)
        self.now, self.number = 0.0, 0
        self.workers = list(workers or (P1, R1, M1))
        self.effects: list[Effect] = self.router.start(0.0)
        self.beat()

    def hear(self, sender: Peer, message: msg.Message, to: Peer | None = ME) -> list[Effect]:
        return self.do(Heard(sender, to, message))

    def do(self, event: Any) -> list[Effect]:
        new = self.router.handle(event, self.now)
        self.effects += new
        return new

    def beat(self, listed: dict[Peer, tuple[msg.HeldRequest, ...]] | None = None) -> None:
        """Everyone beats; whoever is in the cast lists the request, unless told otherwise."""
        self.number += 1
        for worker in self.workers:
            default = (self.holds(worker),) if worker in self.members() else ()
            held = default if listed is None else listed.get(worker, default)
            self.hear(worker, msg.Beat(self.number, CARD, held, msg.EngineLoad()), None)

    def wait(self, seconds: float, *, beating: bool = True) -> list[Effect]:
        """Time goes by; returns what it brought."""
        before, until = len(self.effects), self.now + seconds
        while self.now < until:
            self.now = round(self.now + T.tick_s, 3)
            if beating and round(self.now % T.beat_s, 3) in (0.0, T.beat_s):
                self.beat()
            self.do(TimerFired())
        return self.effects[before:]

    def members(self) -> list[Peer]:
        course = self.router.courses.get(Q)
        return list(course.cast.values()) if course else []

    def holds(self, peer: Peer) -> msg.HeldRequest:
        course = self.router.courses[Q]
        return msg.HeldRequest(Q, course.epoch, ME, "any", False, len(course.out), None, 1)

    def submit(self, max_tokens: int = 30, **more: Any) -> list[Effect]:
        return self.do(RequestSubmitted(Q, PROMPT, Sampling(max_tokens), **{"route": "P-RLD-MD", **more}))

    def accept(self) -> None:
        for peer in self.members():
            self.hear(peer, msg.Accepted(Q, self.router.courses[Q].epoch, 0, self.number))

    # -- what came of it ----------------------------------------------------------------------------------------------

    def delivered(self) -> list[int]:
        """All the client has; each index came once and in order."""
        ids: list[int] = []
        for effect in self.effects:
            if isinstance(effect, Deliver):
                assert effect.written.start == len(ids)
                ids.extend(effect.written.ids)
        return ids

    def ends(self) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, Complete | Reject)]


def sent(effects: list[Effect], kind: type[msg.Message]) -> list[tuple[Peer, Any]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def receivers(effects: list[Effect], kind: type[msg.Message]) -> list[Peer]:
    return [to for to, _ in sent(effects, kind)]


def piece(start: int, stop: int, epoch: Epoch = E1) -> msg.Written:
    finish = Finish("length") if stop == len(WHOLE) else None
    return msg.Written(Q, epoch, start, tuple(WHOLE[start:stop]), finish=finish)


def frame(start: int, stop: int, *, own: bool = True, epoch: Epoch = E1) -> msg.Tokens:
    return msg.Tokens((piece(start, stop, epoch),), own=own)


def dropped(effects: list[Effect], name: str = "pdd_tokens_dropped_total") -> list[str]:
    return [e.labels[0][1] for e in effects if isinstance(e, Count) and e.name == name]


def running(*workers: Peer, **settings: Any) -> Rig:
    rig = Rig(*workers, **settings)
    rig.submit()
    rig.accept()
    return rig


# -- each output once, in order ----------------------------------------------------------------------------------------


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[Peer, msg.Message]]:
    """P writes [0, 1), RLD [1, fence), MD the rest; cut anyhow, in any order, doubled, repeated by others, in a Yield."""
    fence = draw(st.integers(1, len(WHOLE) - 1))
    cuts = sorted({0, 1, fence, len(WHOLE), *draw(st.lists(st.integers(1, len(WHOLE) - 1), max_size=8))})
    frames: list[tuple[Peer, msg.Message]] = []
    for start, stop in pairwise(cuts):
        writer = P1 if stop == 1 else R1 if stop <= fence else M1
        frames.append((writer, frame(start, stop)))
    repeats = draw(st.lists(st.tuples(st.integers(0, fence - 1), st.sampled_from([R1, M1])), max_size=4))
    frames += [(peer, frame(start, fence, own=False)) for start, peer in repeats]
    frames += draw(st.lists(st.sampled_from(frames), max_size=6))
    if draw(st.booleans()):
        frames.append((R1, msg.Yield(Q, E1, fence, piece(0, fence))))
    return draw(st.permutations(frames))


@given(arrivals())
def test_whatever_comes_in_whatever_order_the_client_sees_each_output_once(
    frames: list[tuple[Peer, msg.Message]],
) -> None:
    rig = running()
    for sender, message in frames:
        rig.now += 0.01
        rig.hear(sender, message)
    assert rig.delivered() == WHOLE
    assert [type(end) for end in rig.ends()] == [Complete]


@given(arrivals(), st.data())
def test_what_is_not_of_this_epoch_and_cast_never_reaches_the_client(
    frames: list[tuple[Peer, msg.Message]], data: st.DataObject
) -> None:
    rig = running()
    strangers = [M2, Peer("b", Role.MAIN, "m1", 0), Peer("b", Role.MAIN, "m1", 2), Peer("c", Role.RELAY, "r1", 1)]
    for sender, message in frames:
        start = data.draw(st.integers(0, len(WHOLE) - 1))
        false = msg.Written(Q, Epoch(data.draw(st.sampled_from([0, 2]))), start, (1, 2, 3))
        rig.hear(sender, msg.Tokens((false,)))
        rig.hear(data.draw(st.sampled_from(strangers)), msg.Tokens((msg.Written(Q, E1, start, (1, 2, 3)),)))
        rig.hear(sender, message)
    assert rig.delivered() == WHOLE


@pytest.mark.parametrize(
    ("sender", "epoch", "reason"),
    [(M1, Epoch(2), "epoch"), (M1, Epoch(0), "epoch"), (M2, E1, "cast"), (ME, E1, "cast")],
)
def test_what_is_dropped_is_counted_by_its_reason(sender: Peer, epoch: Epoch, reason: str) -> None:
    assert dropped(running().hear(sender, frame(0, 1, epoch=epoch))) == [reason]


def test_tokens_after_the_end_are_counted_and_change_nothing() -> None:
    rig = running()
    rig.hear(P1, frame(0, 1))
    rig.hear(R1, frame(1, 30))
    assert dropped(rig.hear(R1, frame(1, 30))) == ["ended"]
    assert rig.delivered() == WHOLE and len(rig.ends()) == 1


def test_a_message_for_a_former_life_of_the_router_is_dropped() -> None:
    rig = running()
    old = Peer("a", Role.ROUTER, "router", 0)
    assert dropped(rig.hear(P1, frame(0, 1), to=old), "pdd_messages_dropped_total") == ["incarnation"]
    assert not rig.delivered()


# -- epochs ------------------------------------------------------------------------------------------------------------


def test_an_epoch_starts_from_what_the_client_has() -> None:
    rig = running(P1, R1, M1, M2)
    rig.hear(P1, frame(0, 1))
    rig.hear(R1, frame(1, 7))
    rig.workers.remove(R1)
    new = rig.wait(T.suspect_s + 0.3)
    _, command = sent(new, msg.StartPrefill)[0]
    assert (command.epoch, command.base, command.prompt_len) == (2, 7, len(PROMPT))
    assert command.ids == (*PROMPT, *WHOLE[:7])


def test_a_new_epoch_empties_the_buffer() -> None:
    """What waits behind a gap may continue another text than the one that the new cast will write."""
    rig = running()
    rig.hear(P1, frame(0, 1))
    rig.hear(R1, frame(3, 9))
    rig.workers.remove(R1)
    rig.wait(T.suspect_s + 0.3)
    rig.hear(P1, frame(1, 2, epoch=Epoch(2)))
    rig.hear(M1, frame(2, 3, epoch=Epoch(2)))
    assert rig.delivered() == WHOLE[:3]


def test_a_member_that_comes_back_is_another_peer() -> None:
    rig = running()
    again = Peer("a", Role.RELAY, "r1", 2)
    rig.workers = [P1, again, M1]
    rig.beat()
    new = rig.wait(0.2)
    assert receivers(new, msg.PrepareRelay) == [again]


def test_a_request_that_vanished_from_a_beat_is_lost_there() -> None:
    rig = running()
    rig.beat({R1: ()})
    assert sent(rig.effects, msg.PrepareRelay)[-1][1].epoch == 2


def test_a_beat_older_than_the_acceptance_proves_no_loss() -> None:
    rig = Rig()
    rig.submit()
    for peer in (P1, R1, M1):
        rig.hear(peer, msg.Accepted(Q, E1, 0, beat=7))
    rig.number = 5
    rig.beat({R1: ()})
    assert rig.router.courses[Q].epoch == 1


def test_plan_after_plan_that_brings_one_output_each_is_given_up() -> None:
    """The line never carries the KV: P speaks in every plan, and nobody else ever does."""
    rig = Rig(P1, M1)
    rig.submit(route="P-MD", max_tokens=1000)
    while not rig.ends() and rig.now < 300:
        course = rig.router.courses[Q]
        written = msg.Written(Q, course.epoch, course.base, (1,))
        if len(course.out) == course.base:
            rig.accept()
            rig.hear(P1, msg.Tokens((written,)))
        rig.wait(0.5)
    (end,) = rig.ends()
    assert isinstance(end, Reject) and (end.status, end.code) == (503, "recovery_exhausted")
    assert rig.now < T.give_up_s + T.stall_s * 1.6**4 + 5


# -- nothing is lost for good ------------------------------------------------------------------------------------------


def test_a_command_is_repeated_until_it_is_answered() -> None:
    rig = Rig()
    rig.submit()
    rig.hear(P1, msg.Accepted(Q, E1, 0, 1))
    new = rig.wait(1.3)
    assert receivers(new, msg.PrepareRelay) == [R1, R1] and not receivers(new, msg.StartPrefill)
    rig.hear(R1, msg.Accepted(Q, E1, 0, rig.number))
    assert not receivers(rig.wait(1.0), msg.PrepareRelay)


def test_a_gap_is_asked_for_and_so_is_silence_of_the_whole_cast() -> None:
    rig = running()
    rig.hear(P1, frame(0, 1))
    rig.hear(R1, frame(3, 4))
    asked = sent(rig.wait(T.ask_gap_s + T.retry_s + 0.2), msg.Ask)
    assert [to for to, _ in asked] == [P1, R1, M1] and {ask.start for _, ask in asked} == {1}
    quiet = running()
    quiet.hear(P1, frame(0, 1))
    assert not sent(quiet.wait(T.ask_silence_s - 0.1), msg.Ask)
    assert receivers(quiet.wait(T.retry_s + 0.3), msg.Ask)[:3] == [P1, R1, M1]


def test_a_release_is_repeated_until_it_is_answered() -> None:
    rig = running()
    rig.do(RequestEnded(Q, "gone"))
    assert receivers(rig.wait(0.7), msg.Release) == [P1, R1, M1]
    for peer in (P1, R1):
        rig.hear(peer, msg.Released(Q, E1))
    assert receivers(rig.wait(0.7), msg.Release) == [M1]
    rig.hear(M1, msg.Released(Q, E1))
    assert rig.router.idle and not receivers(rig.wait(2.0), msg.Release)


def test_a_release_to_the_dead_ends_with_the_lease_that_they_had() -> None:
    rig = running()
    rig.do(RequestEnded(Q, "gone"))
    rig.wait(T.lease_s + 0.2)
    assert rig.router.idle


def test_the_answer_to_an_older_release_is_no_answer() -> None:
    rig = running()
    rig.do(RequestEnded(Q, "gone"))
    rig.hear(P1, msg.Released(Q, Epoch(0)))
    assert P1 in receivers(rig.wait(0.7), msg.Release)


def test_a_yield_is_answered_each_time_and_repeated_to_main_decode_until_it_speaks() -> None:
    rig = running()
    rig.hear(P1, frame(0, 1))
    yielded = msg.Yield(Q, E1, 5, piece(0, 5))
    for _ in range(2):
        assert receivers(rig.hear(R1, yielded), msg.Taken) == [R1]
    assert rig.delivered() == WHOLE[:5]  # it suffices alone
    assert receivers(rig.wait(1.2), msg.Yield) == [M1, M1]
    rig.hear(M1, frame(5, 6))
    assert not receivers(rig.wait(1.2), msg.Yield)


def test_beats_are_answered_by_the_epochs_of_what_they_list() -> None:
    rig = running()
    other = RequestId("old")
    listed = (rig.holds(R1), msg.HeldRequest(other, Epoch(3), ME, "any", True, 0, None, 1))
    rig.effects.clear()
    rig.beat({R1: listed})
    assert (R1, msg.Renew({Q: E1, other: Epoch(0)})) in sent(rig.effects, msg.Renew)


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
