"""The sender's side of a connection: turns, window, answers, losses. Time is what the test says it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.effects import OpenTransfer
from pdd.core.events import Event, KvAcked, KvCloseAcked, TransferFailed
from pdd.core.ids import Epoch, Key, Peer, RequestId, Role, TransferId
from pdd.core.link import LinkEstimator
from pdd.core.outbox import PING_EVERY_S, PROBE_AFTER_S, ChunkDue, Outbox
from pdd.core.wire import (
    AckFrame,
    CancelFrame,
    CloseAck,
    CloseFrame,
    Frame,
    OpenFrame,
    Ping,
    Pong,
    Reason,
    Refuse,
    WireShape,
)

SHAPE = WireShape(2, 2, 32, "float32")  # 1 KiB a token
PER_TOKEN = SHAPE.bytes_per_token
A, B = TransferId("a"), TransferId("b")
SILENCE_S = 8.0


def opening(transfer: TransferId) -> OpenTransfer:
    key = Key(RequestId(transfer), Epoch(1))
    return OpenTransfer(transfer, key, Peer("b", Role.MAIN, "md", 1), "b:1", b"secret", "", near=False)


@pytest.fixture
def outbox() -> Outbox:
    box = Outbox(SHAPE, LinkEstimator("b"), SILENCE_S, chunk_tokens_max=64)
    box.connected(0.0, 0.05)
    return box


def drain(box: Outbox, now: float = 0.0) -> list[Frame | ChunkDue]:
    found = []
    while (due := box.next(now)) is not None:
        found.append(due)
    return found


def answer(box: Outbox, due: Frame | ChunkDue, now: float) -> list[Event]:
    """As a receiver that takes everything."""
    match due:
        case ChunkDue(transfer, attempt, _, start, stop):
            return box.receive(AckFrame(transfer, attempt, start, stop), now)
        case CloseFrame(transfer, attempt, _):
            return box.receive(CloseAck(transfer, attempt), now)
        case Ping(number):
            return box.receive(Pong(number), now)
    return []


def spans(dues: list[Frame | ChunkDue], transfer: TransferId) -> list[tuple[int, int]]:
    return [(due.start, due.stop) for due in dues if isinstance(due, ChunkDue) and due.transfer == transfer]


def test_a_transfer_leaves_as_open_chunks_close_and_its_answers_become_events(outbox: Outbox) -> None:
    outbox.open(opening(A), 7)
    outbox.offer(A, 10, 100)
    outbox.close(A, b"token 0")
    dues = drain(outbox)
    opened, *chunks, closing = dues
    assert isinstance(opened, OpenFrame) and (opened.attempt, opened.epoch, opened.secret) == (7, 1, b"secret")
    assert spans(chunks, A) == [(10, 64), (64, 100)]
    assert closing == CloseFrame(A, 7, b"token 0")
    events = [event for due in dues for event in answer(outbox, due, 0.2)]
    assert events == [KvAcked(A, 10, 64), KvAcked(A, 64, 100), KvCloseAcked(A, 90 * PER_TOKEN, 0.2)]
    assert not outbox.active


def test_transfers_take_turns_chunk_by_chunk(outbox: Outbox) -> None:
    for transfer in (A, B):
        outbox.open(opening(transfer), 1)
    outbox.offer(A, 0, 6400)
    outbox.offer(B, 0, 64)
    order = [due.transfer for due in drain(outbox) if isinstance(due, ChunkDue)]
    assert order.index(B) <= 1


def test_the_window_bounds_what_is_unanswered_and_each_answer_opens_it(outbox: Outbox) -> None:
    outbox.open(opening(A), 1)
    outbox.offer(A, 0, 64_000)
    first = drain(outbox)
    sent = sum(stop - start for start, stop in spans(first, A)) * PER_TOKEN
    assert 2 * 64 * PER_TOKEN <= sent <= 2 * (128 << 10) + 64 * PER_TOKEN
    answer(outbox, first[1], 0.1)
    assert spans(drain(outbox, 0.1), A)


def test_control_frames_pass_a_full_window(outbox: Outbox) -> None:
    outbox.open(opening(A), 1)
    outbox.offer(A, 0, 64_000)
    drain(outbox)
    outbox.open(opening(B), 2)
    outbox.cancel(A)
    assert [type(due) for due in drain(outbox)] == [CancelFrame, OpenFrame]


def test_a_cancelled_transfer_sends_nothing_more_and_its_late_answers_are_no_events(outbox: Outbox) -> None:
    outbox.open(opening(A), 1)
    outbox.offer(A, 0, 640)
    sent = drain(outbox)
    outbox.cancel(A)
    assert drain(outbox) == [CancelFrame(A, 1)]
    assert [event for due in sent for event in answer(outbox, due, 0.1)] == []
    assert not outbox.active


def test_a_reopened_transfer_ignores_answers_to_its_earlier_attempt(outbox: Outbox) -> None:
    outbox.open(opening(A), 1)
    outbox.offer(A, 0, 64)
    drain(outbox)
    outbox.open(opening(A), 2)
    assert [type(due) for due in drain(outbox)] == [CancelFrame, OpenFrame]
    assert outbox.receive(Refuse(A, 1, Reason.UNKNOWN), 0.1) == []
    assert outbox.receive(AckFrame(A, 1, 0, 64), 0.1) == []
    assert outbox.receive(Refuse(A, 2, Reason.SECRET), 0.1) == [TransferFailed(A, "secret")]


def test_a_refused_chunk_frees_the_window_and_the_transfer_goes_on(outbox: Outbox) -> None:
    outbox.open(opening(A), 1)
    outbox.offer(A, 0, 64)
    drain(outbox)
    assert outbox.receive(Refuse(A, 1, Reason.CHECKSUM, 0, 64), 0.1) == []
    outbox.close(A, b"")
    assert [type(due) for due in drain(outbox, 0.1)] == [CloseFrame]


def test_what_was_sent_before_an_answered_frame_and_has_no_answer_is_lost(outbox: Outbox) -> None:
    link = LinkEstimator("b")
    box = Outbox(SHAPE, link, SILENCE_S, 64)
    box.connected(0.0, 0.05)
    box.open(opening(A), 1)
    box.offer(A, 0, 128)
    _, first, second = drain(box)
    assert answer(box, second, 0.1) == [KvAcked(A, 64, 128)]
    assert link.inflight_bytes == link.queued_bytes == 0
    assert answer(box, first, 0.2) == [KvAcked(A, 0, 64)]  # late, and still true
    assert link.inflight_bytes == 0


def test_a_lost_closing_frame_fails_its_transfer(outbox: Outbox) -> None:
    outbox.open(opening(A), 1)
    outbox.close(A, b"")
    drain(outbox)
    [ping] = drain(outbox, PING_EVERY_S)
    assert answer(outbox, ping, 1.1) == [TransferFailed(A, "unanswered")]


def test_a_connection_that_was_silent_is_asked_before_anything_is_trusted_to_it(outbox: Outbox) -> None:
    outbox.open(opening(A), 1)
    now = PROBE_AFTER_S + 1
    [ping] = drain(outbox, now)
    assert isinstance(ping, Ping) and outbox.untouched
    answer(outbox, ping, now + 0.1)
    assert [type(due) for due in drain(outbox, now + 0.1)] == [OpenFrame]


def test_an_unanswered_line_is_overdue_after_the_silence_and_an_idle_one_never(outbox: Outbox) -> None:
    assert not outbox.overdue(1000.0)
    outbox.open(opening(A), 1)
    outbox.offer(A, 0, 64)
    drain(outbox, 1.0)
    assert not outbox.overdue(1.0 + SILENCE_S)
    assert outbox.overdue(1.1 + SILENCE_S)


def test_a_lost_connection_fails_every_transfer_and_leaves_nothing_queued() -> None:
    link = LinkEstimator("b")
    box = Outbox(SHAPE, link, SILENCE_S, 64)
    box.connected(0.0, 0.05)
    for transfer in (A, B):
        box.open(opening(transfer), 1)
        box.offer(transfer, 0, 10_000)
    drain(box)
    assert box.lost("lost") == [TransferFailed(A, "lost"), TransferFailed(B, "lost")]
    assert (link.queued_bytes, link.inflight_bytes, box.active) == (0, 0, False)


def test_what_is_asked_of_an_unknown_transfer_is_nothing(outbox: Outbox) -> None:
    outbox.offer(A, 0, 64)
    outbox.close(A, b"")
    outbox.cancel(A)
    assert drain(outbox) == [] and not outbox.active


steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "offer", "close", "cancel", "next", "ack", "refuse", "drop", "lost"]),
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
    link = LinkEstimator("b")
    box = Outbox(SHAPE, link, SILENCE_S, 64)
    box.connected(0.0, 0.01)
    sent: list[Frame | ChunkDue] = []
    now, attempt = 0.0, 0
    for what, transfer, number, passed in script:
        now += passed
        if what == "open":
            attempt += 1
            box.open(opening(transfer), attempt)
        elif what == "offer":
            box.offer(transfer, number, number + 100)
        elif what == "close":
            box.close(transfer, b"")
        elif what == "cancel":
            box.cancel(transfer)
        elif what == "next" and (due := box.next(now)):
            sent.append(due)
        elif what == "lost":
            box.lost("lost")
            sent.clear()
            box.connected(now, 0.01)
        elif sent and what in ("ack", "refuse", "drop"):
            due = sent.pop(number % len(sent))
            if what == "refuse" and isinstance(due, ChunkDue):
                reason = Reason.UNKNOWN if number % 2 else Reason.CHECKSUM
                box.receive(Refuse(due.transfer, due.attempt, reason, due.start, due.stop), now)
            elif what == "ack":
                answer(box, due, now)
        assert 0 <= link.inflight_bytes <= link.queued_bytes
    box.lost("lost")
    assert (link.queued_bytes, link.inflight_bytes) == (0, 0)
