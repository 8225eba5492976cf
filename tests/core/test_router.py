"""The router by its laws: whatever comes in whatever order, the client sees each output of the current epoch once, in order."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core import messages as msg
from pdd.core.effects import Complete, Reject
from pdd.core.events import RequestEnded
from pdd.core.ids import Epoch, Peer, RequestId, Role
from pdd.core.singular import SingularSettings
from tests.core.router_rig import (
    E1,
    M1,
    M2,
    ME,
    P1,
    P2,
    PROMPT,
    R1,
    WHOLE,
    Q,
    Rig,
    T,
    dropped,
    frame,
    piece,
    receivers,
    running,
    sent,
)

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
    rig = running(singular=SingularSettings(cap=1.0))  # so that the end is the end: MD does not learn
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


# -- the line ---------------------------------------------------------------------------------------------------------


def wants(site: str = "b") -> msg.LineWants:
    return msg.LineWants(site, 5e6, 0, 0.0, 0, (msg.Waiting(90_000_000, 90_000_000, 0.0),))


def test_who_wants_a_line_is_leased_it_and_a_silent_sender_leaves_it_to_the_others() -> None:
    rig = Rig(P1, P2, M1)
    assert receivers(rig.hear(P1, wants()), msg.LineLease) == [P1]
    both = dict(sent(rig.hear(P2, wants()), msg.LineLease))
    assert both.keys() == {P1, P2} and all(lease.bytes_per_s for lease in both.values())
    for _ in range(4):
        rig.hear(P1, wants())
        told = sent(rig.wait(0.5), msg.LineLease)
    assert told[-1][0] == P1 and told[-1][1].bytes_per_s == 0  # as the line allows


def test_a_stranger_is_leased_nothing() -> None:
    rig = Rig(P1, M1)
    effects = rig.hear(P2, wants())
    assert not sent(effects, msg.LineLease) and dropped(effects, "pdd_messages_dropped_total") == ["unfit"]
