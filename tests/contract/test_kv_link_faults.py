"""The contract of KvLink on a bad line and with bad peers: everything is noticed, counted, and costs no token."""

from collections.abc import Callable

import pytest

from pdd.adapters.kv_memory_lines import Parcel, flipped
from pdd.core.errors import IllegalEvent
from pdd.core.events import KvCloseAcked, KvClosed, KvDamaged, KvLanded, TransferFailed
from pdd.core.ids import Epoch, Key, RequestId, TransferId
from pdd.core.wire import ChunkFrame
from pdd.ports import KvShape
from tests.contract.kv_bench import SECRET, SHAPE, SILENCE_S, Bench, T
from tests.contract.kv_fixtures import Make, bench, make

__all__ = ["bench", "make"]

OTHER = TransferId("r2.1.md.1")
OTHER_KEY = Key(RequestId("r2"), Epoch(1))


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
