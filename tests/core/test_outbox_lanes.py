"""Several connections to one receiver: what breaks is sent again on another, and nothing is counted twice."""

from hypothesis import given
from hypothesis import strategies as st

from pdd.core.events import Event, KvAcked, KvCloseAcked, TransferFailed
from pdd.core.ids import TransferId
from pdd.core.leaving import ChunkDue
from pdd.core.link import LinkEstimator
from pdd.core.wire import CancelFrame, CloseFrame, Frame, OpenFrame, Reason, Refuse
from tests.core.outboxes import BULK, PER_TOKEN, SILENCE_S, SMALL, A, B, Box, opening, spans


def begun(streams: int = 2, tokens: int = 640) -> Box:
    box = Box(streams)
    box.open(opening(A), 1, 0.0)
    box.offer(A, 0, tokens)
    return box


def test_each_lane_opens_a_transfer_for_itself_before_its_first_chunk() -> None:
    box = begun()
    for lane in (1, 2):
        first, second = box.next(box.lanes[lane], 0.0), box.next(box.lanes[lane], 0.0)
        assert isinstance(first, OpenFrame) and isinstance(second, ChunkDue)


def test_what_a_lane_opens_late_it_also_brings_so_that_nobody_ends_it_before() -> None:
    box = begun(tokens=128)
    for _ in range(2):
        box.next(box.lanes[1], 0.0)  # the opening, and the first chunk
    assert isinstance(box.next(box.lanes[2], 0.0), OpenFrame)
    assert spans(box.drain(lane=1), A) == []
    assert spans(box.drain(lane=2), A) == [(64, 128)]


def test_an_opening_that_came_after_everything_had_arrived_fails_nothing() -> None:
    box = begun(tokens=64)
    box.next(box.lanes[2], 0.0)  # opened there first, and stuck on the way
    sent = box.drain(lane=1)
    box.close(A, b"")
    sent += box.drain(lane=1)
    assert box.hear(Refuse(A, 1, Reason.UNKNOWN), 0.1, lane=2) == []
    assert KvCloseAcked in [type(event) for due in sent for event in box.answer(due, 0.2, lane=1)]


def test_lanes_share_a_transfer_and_no_chunk_leaves_twice() -> None:
    box, chunks = begun(), []
    for _ in range(3):
        for lane in (1, 2):
            due = box.next(box.lanes[lane], 0.0)
            chunks += [due] if isinstance(due, ChunkDue) else []
    assert sorted(spans(chunks, A)) == [(start, start + 64) for start in range(0, 64 * len(chunks), 64)]


def test_the_closing_frame_counts_when_every_lanes_chunks_are_answered() -> None:
    box = begun(tokens=128)
    box.close(A, b"")
    one = [box.next(box.lanes[1], 0.0) for _ in range(2)]
    two = box.drain(lane=2)
    assert isinstance(two[-1], CloseFrame)
    events = [event for due in two for event in box.answer(due, 0.1, lane=2)]
    assert events == [KvAcked(A, 64, 128)]
    assert [type(event) for due in one if due for event in box.answer(due, 0.2, lane=1)] == [KvAcked, KvCloseAcked]


def test_when_a_transfer_ends_every_lane_that_knew_it_hears_so() -> None:
    box = begun(tokens=128)
    for lane in (1, 2):
        box.next(box.lanes[lane], 0.0)
    box.cancel(A)
    assert [box.drain(lane=lane) for lane in (1, 2)] == [[CancelFrame(A, 1)], [CancelFrame(A, 1)]]


def test_what_was_on_a_broken_connection_is_sent_again_on_another() -> None:
    box = begun(tokens=128)
    box.close(A, b"")
    assert spans(box.drain(lane=1), A) == [(0, 64), (64, 128)]
    assert box.drop(1) == []
    assert spans(box.drain(lane=2), A) == [(0, 64), (64, 128)]
    assert box.estimator.queued_bytes == box.estimator.inflight_bytes == 128 * PER_TOKEN


def test_a_connection_that_breaks_alone_and_comes_back_goes_on_from_what_was_answered() -> None:
    box = begun(streams=1, tokens=192)
    dues = box.drain()
    box.answer(dues[1], 0.1)
    box.drop(SMALL)
    assert box.drop(BULK) == []
    box.connect(BULK, 0.2)
    opened, *chunks = box.drain(0.2)
    assert isinstance(opened, OpenFrame) and spans(chunks, A) == [(64, 128), (128, 192)]


def test_a_connection_on_which_nothing_was_answered_is_not_tried_for_ever() -> None:
    box = begun(streams=1)
    box.drop(SMALL)
    box.drain()
    assert box.drop(BULK) == [TransferFailed(A, "lost")]


def test_a_lane_that_breaks_whatever_it_carries_fails_what_it_carried_though_others_stand() -> None:
    box = begun(streams=1)
    box.open(opening(B), 2, 0.0)
    box.drain()
    assert box.drop(BULK) == []
    box.connect(BULK, 1.0)
    box.drain(1.0)
    assert box.drop(BULK) == [TransferFailed(A, "lost")]


def test_an_idle_connection_that_ended_costs_nothing() -> None:
    box = Box(streams=1)
    box.open(opening(A), 1, 0.0)
    for lane in (SMALL, BULK):
        assert box.drop(lane) == []
    box.connect(BULK, 1.0)
    assert isinstance(box.drain(1.0)[0], OpenFrame)


def test_a_transfer_fails_when_no_lane_can_be_connected() -> None:
    box = begun(streams=1)
    box.drain()
    box.answer(box.drain(0.1)[0], 0.1) if box.drain(0.1) else None
    for lane in box.lanes:
        lane.answered = True
        box.drop(lane.number)
        lane.dialing = True
    assert box.unreachable(box.lanes[SMALL], "unreachable") == []
    assert box.unreachable(box.lanes[BULK], "unreachable") == [TransferFailed(A, "lost")]


def test_a_receiver_that_refuses_the_connection_fails_everything_at_once() -> None:
    box = begun(streams=1)
    for lane in box.lanes:
        box.drop(lane.number)
        lane.dialing = True
    assert box.unreachable(box.lanes[SMALL], "fingerprint") == [TransferFailed(A, "fingerprint")]


def test_a_silent_line_fails_everything_and_a_silent_lane_beside_others_only_moves_its_chunks() -> None:
    box = begun(tokens=128)
    box.drain(lane=1)
    assert box.drop(1, "silent") == []
    box.drain(lane=2)
    box.drop(SMALL)
    assert box.drop(2, "silent") == [TransferFailed(A, "silent")]


def test_an_unanswered_lane_is_overdue_after_the_silence_and_an_idle_one_never() -> None:
    box = Box(streams=1)
    assert not box.overdue(box.lanes[BULK], 1000.0)
    box.open(opening(A), 1, 0.0)
    box.offer(A, 0, 64)
    box.drain(1.0)
    assert not box.overdue(box.lanes[BULK], 1.0 + SILENCE_S)
    assert box.overdue(box.lanes[BULK], 1.1 + SILENCE_S)


def test_a_lane_is_given_more_time_while_others_are_answered() -> None:
    box = begun(tokens=128)
    box.next(box.lanes[1], 0.0)
    box.next(box.lanes[1], 0.0)
    box.lanes[2].heard(9.0)
    assert not box.overdue(box.lanes[1], 9.5)
    box.lanes[2].heard(25.0)
    assert box.overdue(box.lanes[1], 25.0)


def test_an_outbox_that_is_given_up_fails_every_transfer_and_leaves_nothing_queued() -> None:
    box = Box(streams=2)
    for transfer in (A, B):
        box.open(opening(transfer), 1, 0.0)
        box.offer(transfer, 0, 10_000)
    box.drain(lane=1)
    assert box.lost("closed") == [TransferFailed(A, "closed"), TransferFailed(B, "closed")]
    assert (box.estimator.queued_bytes, box.estimator.inflight_bytes) == (0, 0)


steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "offer", "close", "cancel", "next", "ack", "refuse", "drop", "break", "lost"]),
        st.sampled_from([A, B]),
        st.integers(0, 400),
        st.floats(0, 0.5),
    ),
    max_size=60,
)


@given(steps)
def test_whatever_happens_bytes_are_neither_lost_nor_counted_twice(
    script: list[tuple[str, TransferId, int, float]],
) -> None:
    """Queue and flight never fall below zero, and are zero once everything has ended."""
    box, now, attempt = Box(streams=2), 0.0, 0
    sent: list[tuple[int, Frame | ChunkDue]] = []
    for what, transfer, number, passed in script:
        now += passed
        lane = number % len(box.lanes)
        match what:
            case "open":
                attempt += 1
                box.open(opening(transfer, number), attempt, now)
            case "offer":
                box.offer(transfer, number, number + 100)
            case "close":
                box.close(transfer, b"")
            case "cancel":
                box.cancel(transfer)
            case "next" if due := box.next(box.lanes[lane], now):
                sent.append((lane, due))
            case "break":
                box.drop(lane)
                sent = [one for one in sent if one[0] != lane]
                box.connect(lane, now)
            case "lost":
                box.lost("lost")
                sent.clear()
            case "ack" | "refuse" | "drop" if sent:
                _answer(box, what, *sent.pop(number % len(sent)), number, now)
        _holds(box.estimator)
    box.lost("lost")
    link = box.estimator
    assert (link.queued_bytes, link.inflight_bytes, link.small_bytes) == (0, 0, 0)


def _answer(box: Box, what: str, lane: int, due: Frame | ChunkDue, number: int, now: float) -> list[Event]:
    if what == "ack":
        return box.answer(due, now, lane)
    if what == "refuse" and isinstance(due, ChunkDue):
        reason = (Reason.UNKNOWN, Reason.CHECKSUM, Reason.BUSY)[number % 3]
        return box.hear(Refuse(due.transfer, due.attempt, reason, due.start, due.stop), now, lane)
    return []


def _holds(link: LinkEstimator) -> None:
    assert 0 <= link.inflight_bytes <= link.queued_bytes
    assert 0 <= link.small_bytes <= link.queued_bytes
