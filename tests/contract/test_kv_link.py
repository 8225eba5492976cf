"""The contract of KvLink, put to every adapter: what is offered lands whole and right, or somebody is told."""

from collections.abc import Callable, Iterator

import pytest

from pdd.adapters.kv_memory_lines import Parcel, flipped
from pdd.core.errors import IllegalEvent
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
from pdd.core.wire import ChunkFrame
from pdd.ports import KvShape
from tests.contract.kv_bench import BENCHES, KEY, SECRET, SHAPE, SILENCE_S, Bench, T

OTHER = TransferId("r2.1.md.1")
OTHER_KEY = Key(RequestId("r2"), Epoch(1))
PER_TOKEN = SHAPE.bytes_per_token
Make = Callable[..., Bench]


@pytest.fixture(params=BENCHES)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Bench] = []

    def build(staging_bytes: int = 4096 * PER_TOKEN, chunk_tokens: int = 16, **more: object) -> Bench:
        made.append(BENCHES[request.param](staging_bytes, chunk_tokens, **more))
        return made[-1]

    yield build
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()


class OnChunk:
    """A fault for the nth chunk alone, counted from 0."""

    def __init__(self, number: int, change: Callable[[Parcel], list[Parcel]]) -> None:
        self.number, self.change, self.seen = number, change, -1

    def __call__(self, parcel: Parcel) -> list[Parcel]:
        self.seen += isinstance(parcel.frame, ChunkFrame)
        hit = isinstance(parcel.frame, ChunkFrame) and self.seen == self.number
        return self.change(parcel) if hit else [parcel]


def flip(parcel: Parcel) -> list[Parcel]:
    assert parcel.payload
    return [Parcel(parcel.frame, flipped(parcel.payload, 100))]


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


# -- what a bad line does ---------------------------------------------------------------------------------------------


def test_after_a_cut_a_new_opening_with_the_missing_ranges_completes_the_transfer(bench: Bench) -> None:
    bench.slow()
    bench.expect(0, 1000)
    bench.open()
    bench.offer(0, 1000)
    bench.until(lambda: bench.receiver.landed_tokens() >= 64)
    bench.cut()
    assert bench.until_event(bench.sender, TransferFailed) == TransferFailed(T, "lost")
    bench.restore()
    bench.reopen(0, 1000)
    bench.until_event(bench.sender, KvCloseAcked)
    assert bench.receiver.landed_tokens() == 1000
    assert bench.sender.pages.equal(bench.taken(), 0, 1000)


def test_while_the_line_is_cut_an_opening_fails_and_afterwards_it_works(bench: Bench) -> None:
    bench.cut()
    bench.expect(0, 10)
    bench.open()
    assert bench.until_event(bench.sender, TransferFailed) == TransferFailed(T, "unreachable")
    bench.restore()
    bench.open()
    bench.offer(0, 10)
    bench.finish()
    bench.until_event(bench.sender, KvCloseAcked)


def test_a_stalled_line_is_noticed_within_the_silence(bench: Bench) -> None:
    bench.expect(0, 1000)
    bench.open()
    bench.offer(0, 16)
    bench.until(lambda: bench.receiver.landed_tokens() == 16)
    bench.stall()
    bench.offer(16, 1000)
    assert bench.until_event(bench.sender, TransferFailed, seconds=4 * SILENCE_S).transfer == T
    bench.restore()
    bench.reopen(0, 1000)
    bench.until_event(bench.sender, KvCloseAcked)
    assert bench.sender.pages.equal(bench.taken(), 0, 1000)


def test_a_flipped_bit_is_noticed_and_the_chunk_can_be_sent_again(bench: Bench) -> None:
    bench.err(OnChunk(2, flip))
    bench.expect(0, 100)
    bench.open()
    bench.offer(0, 100)
    assert bench.until_event(bench.receiver, KvDamaged) == KvDamaged(T, "checksum")
    bench.until(lambda: bench.receiver.landed_tokens() == 84)
    assert bench.receiver.dropped("checksum") == 1
    with pytest.raises(IllegalEvent):
        bench.taken()
    assert bench.missing(0, 100) == [(32, 48)]
    bench.offer(32, 48)
    bench.finish()
    bench.until_event(bench.receiver, KvClosed)
    assert bench.sender.pages.equal(bench.taken(), 0, 100)


def test_a_doubled_chunk_is_dropped_counted_and_lands_once(bench: Bench) -> None:
    bench.err(OnChunk(1, lambda parcel: [parcel, parcel]))
    bench.expect(0, 64)
    bench.open()
    bench.offer(0, 64)
    bench.finish()
    bench.until_event(bench.sender, KvCloseAcked)
    assert bench.receiver.landed_tokens() == 64
    assert bench.receiver.dropped("double") == 1
    assert not bench.receiver.all(KvDamaged)
    assert bench.sender.pages.equal(bench.taken(), 0, 64)


def test_chunks_in_another_order_land_where_they_belong(bench: Bench) -> None:
    late: list[Parcel] = []

    def swap(parcel: Parcel) -> list[Parcel]:
        if not isinstance(parcel.frame, ChunkFrame):
            return [parcel]
        if not late:
            late.append(parcel)
            return []
        return [parcel, late.pop()]

    bench.err(swap)
    bench.expect(0, 64)
    bench.open()
    bench.offer(0, 64)
    bench.until(lambda: bench.receiver.landed_tokens() == 64)
    assert [event.start for event in bench.receiver.all(KvLanded)] == [16, 0, 48, 32]
    assert bench.sender.pages.equal(bench.taken(), 0, 64)


def test_a_chunk_cut_short_is_noticed_and_sent_again_on_a_new_connection(bench: Bench) -> None:
    bench.err(OnChunk(2, lambda parcel: [Parcel(parcel.frame, (parcel.payload or memoryview(b""))[:50])]))
    bench.expect(0, 100)
    bench.open()
    bench.offer(0, 100)
    bench.finish()
    bench.until_event(bench.sender, KvCloseAcked)
    assert bench.receiver.dropped("short") == 1
    assert not bench.sender.all(TransferFailed) and not bench.receiver.all(KvDamaged)
    assert bench.receiver.landed_tokens() == 100
    assert bench.sender.pages.equal(bench.taken(), 0, 100)


def test_a_lost_chunk_holds_up_nothing_and_is_missing_at_the_end(bench: Bench) -> None:
    bench.err(OnChunk(1, lambda parcel: []))
    bench.expect(0, 100)
    bench.open()
    bench.offer(0, 100)
    bench.finish()
    bench.until_event(bench.sender, KvCloseAcked)
    assert bench.missing(0, 100) == [(16, 32)]


def test_ranges_sent_again_with_other_bounds_land_once(make: Make) -> None:
    """A resend meets chunks of the earlier attempt that were still on the line."""
    bench = make(chunk_tokens=32)
    bench.expect(0, 96)
    bench.open()
    bench.offer(8, 24)
    bench.offer(40, 41)
    bench.until(lambda: bench.receiver.landed_tokens() == 17)
    bench.open()
    bench.offer(0, 96)
    bench.finish()
    bench.until_event(bench.sender, KvCloseAcked)
    assert bench.receiver.landed_tokens() == 96
    assert bench.receiver.dropped("overlap") == 2 and not bench.receiver.all(KvDamaged)
    assert bench.sender.pages.equal(bench.taken(), 0, 96)


# -- who is turned away -----------------------------------------------------------------------------------------------


def _refusals() -> dict[str, tuple[dict[str, object], dict[str, object]]]:
    """Reason -> (how it is expected, how it is opened)."""
    return {
        "unknown": ({"transfer": OTHER}, {}),
        "secret": ({}, {"secret": SECRET[::-1]}),
        "epoch": ({"epoch": 2}, {}),
    }


@pytest.mark.parametrize("reason", _refusals())
def test_a_sender_that_is_not_expected_writes_nothing_and_is_told(bench: Bench, reason: str) -> None:
    expected, opened = _refusals()[reason]
    bench.expect(0, 100, **expected)
    bench.open(**opened)
    bench.offer(0, 100)
    assert bench.until_event(bench.sender, TransferFailed) == TransferFailed(T, reason)
    assert bench.receiver.dropped(reason) >= 1
    assert not bench.receiver.all(KvLanded) and not bench.receiver.all(KvDamaged)


def test_what_is_meant_for_another_life_of_the_receiver_is_refused(bench: Bench) -> None:
    bench.expect(0, 100)
    earlier = type(bench.receiver.peer)("b", bench.receiver.peer.role, "md", 0)
    bench.open(receiver=earlier)
    assert bench.until_event(bench.sender, TransferFailed) == TransferFailed(T, "receiver")


def test_another_geometry_is_refused(make: Make) -> None:
    bench = make(shape=KvShape(SHAPE.layers + 1, SHAPE.kv_heads, SHAPE.head_dim, SHAPE.dtype))
    bench.expect(0, 100)
    bench.open()
    assert bench.until_event(bench.sender, TransferFailed) == TransferFailed(T, "shape")


def test_another_fingerprint_is_refused_before_any_transfer(make: Make) -> None:
    bench = make(fingerprints=("f", "g"))
    bench.expect(0, 100)
    bench.open()
    assert bench.until_event(bench.sender, TransferFailed) == TransferFailed(T, "fingerprint")


def test_one_refused_transfer_leaves_the_others_alone(bench: Bench) -> None:
    bench.sender.pages.open.add(OTHER_KEY)
    bench.expect(0, 500)
    bench.open()
    bench.offer(0, 500)
    bench.open(OTHER, key=OTHER_KEY)
    bench.offer(0, 500, OTHER)
    bench.finish()
    bench.until_event(bench.sender, KvCloseAcked)
    assert bench.until_event(bench.sender, TransferFailed) == TransferFailed(OTHER, "unknown")
    assert bench.sender.pages.equal(bench.taken(), 0, 500)


def test_ranges_outside_what_is_expected_are_damage(bench: Bench) -> None:
    bench.expect(16, 32)
    bench.open()
    bench.offer(0, 48)
    bench.until_event(bench.receiver, KvDamaged, times=2)
    assert {event.reason for event in bench.receiver.all(KvDamaged)} == {"range"}
    assert bench.receiver.landed_tokens() == 16


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
