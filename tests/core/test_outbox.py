"""The sender's side of the way to one receiver: turns, window, answers, refusals."""

import pytest

from pdd.core.departures import TRICKLE_S
from pdd.core.events import KvAcked, KvCloseAcked, TransferFailed
from pdd.core.lane import PING_EVERY_S
from pdd.core.leaving import ChunkDue
from pdd.core.wire import AckFrame, CancelFrame, CloseFrame, OpenFrame, Reason, Refuse
from tests.core.outboxes import BULK, PER_TOKEN, SMALL, A, B, Box, C, opening, order, spans

KIB = 1 << 10


@pytest.fixture
def box() -> Box:
    return Box()


def test_a_transfer_leaves_as_open_chunks_close_and_its_answers_become_events(box: Box) -> None:
    box.open(opening(A), 7, 0.0)
    box.offer(A, 10, 100)
    box.close(A, b"token 0")
    dues = box.drain()
    opened, *chunks, closing = dues
    assert isinstance(opened, OpenFrame) and (opened.attempt, opened.epoch, opened.secret) == (7, 1, b"secret")
    assert spans(chunks, A) == [(10, 64), (64, 100)]
    assert closing == CloseFrame(A, 7, b"token 0")
    events = [event for due in dues for event in box.answer(due, 0.2)]
    assert events == [KvAcked(A, 10, 64), KvAcked(A, 64, 100), KvCloseAcked(A, 90 * PER_TOKEN, 0.2)]
    assert not box.active


# -- turns ------------------------------------------------------------------------------------------------------------


def test_the_shortest_transfer_goes_first_and_a_longer_one_gives_way(box: Box) -> None:
    for transfer, tokens in ((A, 6400), (B, 3200), (C, 1600)):
        box.open(opening(transfer, tokens), 1, 0.0)
    box.offer(A, 0, 6400)
    first = box.drain()
    assert order(first) == [A]
    box.offer(B, 0, 3200)
    box.offer(C, 0, 1600)
    for due in first:
        box.answer(due, 0.1)
    assert order(box.drain(0.1))[0] == C


def test_what_has_waited_long_passes_what_is_shorter(box: Box) -> None:
    box.measure(1e6)
    box.open(opening(A, 6000), 1, 0.0)
    box.offer(A, 0, 6000)
    box.open(opening(B, 3000), 1, 60.0)
    box.offer(B, 0, 3000)
    box.lanes[BULK].heard(60.0)
    assert order(box.drain(60.0))[0] == A


def test_warm_up_comes_after_all_that_somebody_waits_for(box: Box) -> None:
    box.open(opening(A, 300, warm_up=True), 1, 0.0)
    box.offer(A, 0, 300)
    box.open(opening(B, 6000), 2, 0.0)
    box.offer(B, 0, 6000)
    assert order(box.drain())[0] == B


def test_small_transfers_have_a_lane_of_their_own(box: Box) -> None:
    box.measure(2e6)
    box.open(opening(A, 6400), 1, 0.0)
    box.offer(A, 0, 6400)
    box.open(opening(B, 100), 2, 0.0)
    box.offer(B, 0, 100)
    assert order(box.drain(lane=SMALL)) == [B]
    assert order(box.drain(lane=BULK)) == [A]


def test_a_lane_that_has_no_bulk_to_send_helps_with_small_transfers(box: Box) -> None:
    box.measure(2e6)
    box.open(opening(A, 100), 1, 0.0)
    box.offer(A, 0, 100)
    box.next(box.lanes[SMALL], 0.0)  # it is opened
    assert spans(box.drain(lane=BULK), A) == [(0, 64), (64, 100)]
    box.open(opening(B, 6400), 2, 0.0)
    box.offer(B, 0, 6400)
    box.open(opening(C, 100), 3, 0.0)
    box.offer(C, 0, 100)
    box.next(box.lanes[SMALL], 0.0)
    assert order(box.drain(lane=BULK)) == [B]


def test_a_full_window_of_bulk_leaves_room_for_small(box: Box) -> None:
    box.measure(2e6)
    box.open(opening(A, 6400), 1, 0.0)
    box.offer(A, 0, 6400)
    box.drain()
    box.open(opening(B, 100), 2, 0.0)
    box.offer(B, 0, 100)
    assert spans(box.drain(lane=SMALL), B) == [(0, 64), (64, 100)]


def test_whoever_waits_gets_a_small_chunk_through_now_and_then(box: Box) -> None:
    box.measure(1e6)
    for transfer, tokens in ((A, 900_000), (B, 300_000)):
        box.open(opening(transfer, tokens), 1, 0.0)
        box.offer(transfer, 0, tokens)
    now, left = 0.0, box.drain()
    while now < 2 * TRICKLE_S + 0.5:
        now += 0.07  # a chunk's time
        box.answer(left[-1], now)
        left += [due for due in [box.next(box.lanes[BULK], now)] if due]
    of_a = spans(left, A)
    assert 1 <= len(of_a) <= 3 and sum(stop - start for start, stop in of_a) * PER_TOKEN <= 3 * 64 * KIB


# -- window and credit ------------------------------------------------------------------------------------------------


def test_the_window_bounds_what_is_unanswered_and_each_answer_opens_it(box: Box) -> None:
    box.open(opening(A), 1, 0.0)
    box.offer(A, 0, 64_000)
    first = box.drain()
    sent = sum(stop - start for start, stop in spans(first, A)) * PER_TOKEN
    assert 2 * 64 * PER_TOKEN <= sent <= 2 * (128 << 10) + 64 * PER_TOKEN
    box.answer(first[1], 0.1)
    assert spans(box.drain(0.1), A)


def test_the_receivers_credit_bounds_all_lanes_together() -> None:
    box = Box(credit_bytes=150 * KIB)
    for transfer, tokens in ((A, 6400), (B, 100)):
        box.open(opening(transfer, tokens), 1, 0.0)
        box.offer(transfer, 0, tokens)
    box.drain(lane=SMALL)
    box.drain(lane=BULK)
    assert box.estimator.inflight_bytes <= 150 * KIB


def test_a_chunk_larger_than_the_credit_goes_alone() -> None:
    box = Box(credit_bytes=10 * KIB)
    box.open(opening(A), 1, 0.0)
    box.offer(A, 0, 640)
    chunks = spans(box.drain(), A)
    assert len(chunks) == 1


def test_control_frames_pass_a_full_window(box: Box) -> None:
    box.open(opening(A), 1, 0.0)
    box.offer(A, 0, 64_000)
    box.drain()
    box.open(opening(B), 2, 0.0)
    box.cancel(A)
    assert [type(due) for due in box.drain()] == [CancelFrame, OpenFrame]


# -- cancelling and opening anew --------------------------------------------------------------------------------------


def test_a_cancelled_transfer_sends_nothing_more_and_its_late_answers_are_no_events(box: Box) -> None:
    box.open(opening(A), 1, 0.0)
    box.offer(A, 0, 640)
    sent = box.drain()
    box.cancel(A)
    assert box.drain() == [CancelFrame(A, 1)]
    assert [event for due in sent for event in box.answer(due, 0.1)] == []
    assert not box.active


def test_a_reopened_transfer_ignores_answers_to_its_earlier_attempt(box: Box) -> None:
    box.open(opening(A), 1, 0.0)
    box.offer(A, 0, 64)
    box.drain()
    box.open(opening(A), 2, 0.0)
    assert [type(due) for due in box.drain()] == [CancelFrame, OpenFrame]
    assert box.hear(Refuse(A, 1, Reason.UNKNOWN), 0.1) == []
    assert box.hear(AckFrame(A, 1, 0, 64), 0.1) == []
    assert box.hear(Refuse(A, 2, Reason.SECRET), 0.1) == [TransferFailed(A, "secret")]


def test_a_reopened_transfer_keeps_the_time_it_has_waited(box: Box) -> None:
    box.measure(1e6)
    box.open(opening(A, 6000), 1, 0.0)
    box.open(opening(A, 6000), 2, 59.0)
    box.offer(A, 0, 6000)
    box.open(opening(B, 3000), 3, 59.0)
    box.offer(B, 0, 3000)
    assert order(box.drain(60.0))[0] == A


def test_a_refused_chunk_frees_the_window_and_the_transfer_goes_on(box: Box) -> None:
    box.open(opening(A), 1, 0.0)
    box.offer(A, 0, 64)
    box.drain()
    assert box.hear(Refuse(A, 1, Reason.CHECKSUM, 0, 64), 0.1) == []
    box.close(A, b"")
    assert [type(due) for due in box.drain(0.1)] == [CloseFrame]


def test_a_chunk_whose_place_is_busy_is_sent_again(box: Box) -> None:
    box.open(opening(A), 1, 0.0)
    box.offer(A, 0, 64)
    box.offer(A, 64, 128)
    box.drain()
    assert box.hear(Refuse(A, 1, Reason.BUSY, 0, 64), 0.1) == []
    assert spans(box.drain(0.1), A) == [(0, 64)]


def test_what_was_sent_before_an_answered_frame_and_has_no_answer_is_lost(box: Box) -> None:
    link = box.estimator
    box.open(opening(A), 1, 0.0)
    box.offer(A, 0, 128)
    _, first, second = box.drain()
    assert box.answer(second, 0.1) == [KvAcked(A, 64, 128)]
    assert link.inflight_bytes == link.queued_bytes == 0
    assert box.answer(first, 0.2) == [KvAcked(A, 0, 64)]  # late, and still true
    assert link.inflight_bytes == 0


def test_a_lost_closing_frame_fails_its_transfer(box: Box) -> None:
    box.open(opening(A), 1, 0.0)
    box.close(A, b"")
    box.drain()
    [ping] = box.drain(PING_EVERY_S)
    assert box.answer(ping, 1.1) == [TransferFailed(A, "unanswered")]


def test_what_is_asked_of_an_unknown_transfer_is_nothing(box: Box) -> None:
    box.offer(A, 0, 64)
    box.close(A, b"")
    box.cancel(A)
    assert box.drain() == [] and not box.active


# -- pace -------------------------------------------------------------------------------------------------------------


def seconds_for(box: Box, tokens: int, began: float) -> float:
    """Until the last of A's chunks has left, each answered at once."""
    now, left = began, 0
    while left < tokens:
        for due in box.drain(now):
            left += due.stop - due.start if isinstance(due, ChunkDue) else 0
            box.answer(due, now)
        now += box.wait_s(now, 0.25)
        assert now < began + 100
    return now - began


def test_bulk_leaves_at_the_leased_rate_and_then_at_an_equal_share(box: Box) -> None:
    box.measure(1e6)
    box.pace.lease(200 * KIB, 100 * KIB, until=10.0)
    box.open(opening(A, 4000), 1, 0.0)
    box.offer(A, 0, 4000)
    assert seconds_for(box, 1000, 0.0) == pytest.approx(5.0, rel=0.2)
    assert seconds_for(box, 400, 11.0) == pytest.approx(4.0, rel=0.2)


def test_small_transfers_are_not_held_back_by_a_lease(box: Box) -> None:
    box.measure(4e6)
    box.pace.lease(1.0, 1.0, until=100.0)
    box.open(opening(A, 200), 1, 0.0)
    box.offer(A, 0, 200)
    assert sum(stop - start for start, stop in spans(box.drain(lane=SMALL), A)) == 200
