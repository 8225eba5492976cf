"""The contract of KvLink, put to every adapter: what is offered lands whole and right, or somebody is told."""

from pdd.core.events import (
    KvAcked,
    KvCloseAcked,
    KvClosed,
    KvDamaged,
    KvExpected,
    KvLanded,
    KvRefused,
    LineMeasured,
    TransferFailed,
)
from pdd.core.ids import Epoch, Key, RequestId, TransferId
from pdd.ports import KvShape
from tests.contract.kv_bench import KEY, SHAPE, Bench, T
from tests.contract.kv_fixtures import PER_TOKEN, Make, bench, make

__all__ = ["bench", "make"]

OTHER = TransferId("r2.1.md.1")
OTHER_KEY = Key(RequestId("r2"), Epoch(1))


# -- what should happen -----------------------------------------------------------------------------------------------


def test_what_is_offered_lands_in_staging_as_it_was_exported(bench: Bench) -> None:
    bench.expect(8, 200)
    assert bench.until_event(bench.receiver, KvExpected).transfer == T
    bench.open()
    bench.offer(8, 200)
    bench.finish(b"token 0")
    acked = bench.until_event(bench.sender, KvCloseAcked)
    assert bench.receiver.all(KvClosed) == [KvClosed(T, b"token 0")]
    assert acked.payload_bytes == 192 * PER_TOKEN and acked.seconds >= 0
    assert bench.receiver.landed_tokens() == 192
    assert bench.sender.pages.equal(bench.taken(), 8, 200)
    assert sum(event.stop - event.start for event in bench.sender.all(KvAcked)) == 192


def test_chunks_leave_while_the_rest_is_still_being_computed(bench: Bench) -> None:
    bench.expect(0, 100)
    bench.open()
    for start in range(0, 100, 20):
        bench.offer(start, start + 20)
        bench.until(lambda upto=start + 20: bench.receiver.landed_tokens() == upto)
        assert max(stop for _, stop in bench.sender.pages.exported) == start + 20
    bench.finish()
    bench.until_event(bench.receiver, KvClosed)
    assert bench.sender.pages.equal(bench.taken(), 0, 100)


def test_the_closing_frame_comes_after_all_that_was_offered_before_it(bench: Bench) -> None:
    bench.expect(0, 500)
    bench.open()
    bench.offer(0, 500)
    bench.finish()
    bench.until_event(bench.receiver, KvClosed)
    events = [event for event in bench.receiver.events if isinstance(event, KvLanded | KvClosed)]
    assert isinstance(events[-1], KvClosed) and bench.receiver.landed_tokens() == 500


def test_a_transfer_that_misses_nothing_carries_only_its_closing_frame(bench: Bench) -> None:
    bench.expect(64, 64)
    bench.until_event(bench.receiver, KvExpected)
    bench.open()
    bench.finish(b"only this")
    assert bench.until_event(bench.sender, KvCloseAcked).payload_bytes == 0
    assert bench.receiver.all(KvClosed) == [KvClosed(T, b"only this")]
    assert bench.taken() == []


def test_a_small_transfer_does_not_wait_for_a_big_one(bench: Bench) -> None:
    bench.slow()
    bench.sender.pages.open.add(OTHER_KEY)
    bench.expect(0, 2000)
    bench.expect(0, 16, OTHER)
    bench.open()
    bench.offer(0, 2000)
    bench.until(lambda: bench.receiver.landed_tokens() > 0)
    bench.open(OTHER, key=OTHER_KEY)
    bench.offer(0, 16, OTHER)
    bench.finish(transfer=OTHER)
    bench.until_event(bench.receiver, KvClosed)
    assert bench.receiver.landed_tokens() < 2000


def test_the_senders_dtype_may_differ_from_the_receivers(make: Make) -> None:
    bench = make(shape=KvShape(SHAPE.layers, SHAPE.kv_heads, SHAPE.head_dim, "bfloat16"))
    bench.expect(0, 40)
    bench.open()
    bench.offer(0, 40)
    bench.finish()
    bench.until_event(bench.receiver, KvClosed)
    assert bench.sender.pages.equal(bench.taken(), 0, 40)
    assert bench.staging.used_bytes == 40 * PER_TOKEN


def test_the_line_is_measured_from_what_was_acknowledged(bench: Bench) -> None:
    bench.expect(0, 4000)
    bench.open()
    bench.offer(0, 4000)
    bench.finish()
    bench.until_event(bench.sender, KvCloseAcked)
    bench.until(lambda: any(not event.line.queued_bytes for event in bench.sender.all(LineMeasured)))
    line = bench.sender.all(LineMeasured)[-1].line
    assert line.site == "b" and line.bytes_per_s > 0 and line.rtt_s > 0 and line.queued_bytes == 0
    assert bench.sender.notes.last("pdd_line_bytes_per_second", site="b") == line.bytes_per_s


# -- memory and ends --------------------------------------------------------------------------------------------------


def test_staging_is_bounded_and_given_back(make: Make) -> None:
    bench = make(staging_bytes=100 * PER_TOKEN)
    bench.expect(0, 60)
    bench.expect(0, 60, OTHER)
    assert bench.until_event(bench.receiver, KvRefused) == KvRefused(OTHER, "memory")
    bench.drop()
    bench.expect(0, 60, OTHER)
    assert bench.until_event(bench.receiver, KvExpected, times=2).transfer == OTHER
    bench.drop(OTHER)
    bench.drop(OTHER)
    assert bench.staging.used_bytes == 0
    assert bench.receiver.notes.last("pdd_staging_bytes") == 0


def test_expecting_twice_is_expecting_once(bench: Bench) -> None:
    bench.expect(0, 60)
    bench.expect(0, 60)
    bench.until_event(bench.receiver, KvExpected, times=2)
    assert bench.staging.used_bytes == 60 * PER_TOKEN


def test_a_dropped_transfer_takes_nothing_more_and_its_sender_is_told(bench: Bench) -> None:
    bench.slow()
    bench.expect(0, 2000)
    bench.open()
    bench.offer(0, 2000)
    bench.until(lambda: bench.receiver.landed_tokens() > 0)
    bench.drop()
    assert bench.until_event(bench.sender, TransferFailed) == TransferFailed(T, "unknown")
    assert bench.staging.used_bytes == 0 and bench.receiver.dropped("unknown") >= 1


def test_a_cancelled_transfer_frees_the_line_for_the_next(bench: Bench) -> None:
    bench.slow()
    bench.sender.pages.open.add(OTHER_KEY)
    bench.expect(0, 3000)
    bench.expect(0, 16, OTHER)
    bench.open()
    bench.offer(0, 3000)
    bench.until(lambda: bench.receiver.landed_tokens() > 0)
    bench.cancel()
    exported = sum(stop - start for start, stop in bench.sender.pages.exported)
    bench.open(OTHER, key=OTHER_KEY)
    bench.offer(0, 16, OTHER)
    bench.finish(transfer=OTHER)
    bench.until_event(bench.sender, KvCloseAcked)
    after = sum(stop - start for start, stop in bench.sender.pages.exported) - exported
    assert after <= 16 + 16  # at most one chunk was being exported
    assert not bench.sender.all(TransferFailed)


def test_a_sequence_that_was_closed_fails_its_transfer(bench: Bench) -> None:
    bench.expect(0, 100)
    bench.open()
    bench.offer(0, 16)
    bench.until(lambda: bench.receiver.landed_tokens() == 16)
    bench.sender.pages.open.remove(KEY)
    bench.offer(16, 100)
    assert bench.until_event(bench.sender, TransferFailed) == TransferFailed(T, "sequence_closed")


def test_the_newest_opening_has_the_transfer(bench: Bench) -> None:
    bench.slow()
    bench.expect(0, 300)
    bench.open()
    bench.offer(0, 300)
    bench.until(lambda: bench.receiver.landed_tokens() > 0)
    bench.reopen(0, 300)
    bench.until_event(bench.sender, KvCloseAcked)
    assert bench.receiver.landed_tokens() == 300 and not bench.receiver.all(KvDamaged)
    assert bench.sender.pages.equal(bench.taken(), 0, 300)


def test_what_is_asked_of_unknown_transfers_is_nothing(bench: Bench) -> None:
    bench.offer(0, 10)
    bench.finish()
    bench.cancel()
    bench.drop()
    assert bench.sender.events == [] and bench.receiver.events == []
