"""Staging against a naive twin: which tokens are here, and whose bytes they are."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.adapters.staging import Place, Staging
from pdd.core.effects import ExpectKv
from pdd.core.errors import IllegalEvent
from pdd.core.ids import Epoch, TransferId
from pdd.core.wire import Reason
from pdd.ports import KvShape

SHAPE = KvShape(layers=2, kv_heads=1, head_dim=2, dtype="bfloat16")  # 16 bytes a token
HALF = SHAPE.bytes_per_token // SHAPE.layers
T = TransferId("t")
SECRET = b"s" * 16


def staging(budget_tokens: int = 1000) -> Staging:
    return Staging(budget_tokens * SHAPE.bytes_per_token, SHAPE)


def expect(start: int, stop: int, transfer: TransferId = T, epoch: int = 1, secret: bytes = SECRET) -> ExpectKv:
    return ExpectKv(transfer, Epoch(epoch), secret, start, stop)


def opened(start: int, stop: int) -> Staging:
    store = staging()
    assert store.expect(expect(start, stop)) is None
    assert store.admit(T, Epoch(1), SECRET, SHAPE) is None
    return store


def content(start: int, stop: int) -> bytes:
    """Each layer's each token has its own bytes."""
    return b"".join(bytes([layer * 128 + token % 128]) * HALF for layer in range(2) for token in range(start, stop))


def put(store: Staging, start: int, stop: int) -> list[tuple[int, int]]:
    place = store.claim(T, Epoch(1), start, stop)
    if isinstance(place, Reason):
        return []
    place.view[:] = content(start, stop)
    return store.land(place)


ranges = st.tuples(st.integers(0, 59), st.integers(1, 20)).map(lambda pair: (pair[0], min(60, pair[0] + pair[1])))


@given(st.lists(ranges, max_size=12))
def test_any_order_and_overlap_of_chunks_lands_each_token_once_and_right(asked: list[tuple[int, int]]) -> None:
    store, here = opened(0, 60), [False] * 60
    for start, stop in asked:
        new = [token for a, b in put(store, start, stop) for token in range(a, b)]
        assert new == [token for token in range(start, stop) if not here[token]]
        here[start:stop] = [True] * (stop - start)
    put(store, 0, 60)
    chunks = store.take(T)
    assert [token for chunk in chunks for token in range(chunk.start, chunk.stop)] == list(range(60))
    for chunk in chunks:
        assert bytes(chunk.data) == content(chunk.start, chunk.stop)


def test_what_has_landed_is_never_written_again() -> None:
    store = opened(0, 10)
    put(store, 0, 10)
    assert store.claim(T, Epoch(1), 2, 8) is Reason.DOUBLE
    assert bytes(store.take(T)[0].data) == content(0, 10)


def test_two_writers_never_hold_the_same_tokens() -> None:
    store = opened(0, 10)
    first = store.claim(T, Epoch(1), 0, 6)
    assert isinstance(first, Place) and store.claim(T, Epoch(1), 0, 6) is Reason.BUSY
    second = store.claim(T, Epoch(1), 4, 10)
    assert isinstance(second, Place) and second.aside
    second.view[:] = content(4, 10)
    assert store.land(second) == [(6, 10)]
    store.give_back(first)
    assert put(store, 0, 6) == [(0, 6)]
    assert [bytes(chunk.data) for chunk in store.take(T)] == [content(0, 6), content(6, 10)]


def test_a_chunk_that_was_given_back_leaves_its_place_free() -> None:
    store = opened(0, 10)
    place = store.claim(T, Epoch(1), 0, 10)
    assert isinstance(place, Place)
    store.give_back(place)
    assert put(store, 0, 10) == [(0, 10)]


@pytest.mark.parametrize(("start", "stop"), [(3, 8), (8, 13), (0, 20), (5, 5), (9, 7)])
def test_ranges_outside_the_expected_are_refused(start: int, stop: int) -> None:
    assert opened(5, 10).claim(T, Epoch(1), start, stop) is Reason.RANGE


def test_gaps_are_no_whole_transfer() -> None:
    store = opened(0, 30)
    put(store, 0, 10)
    put(store, 20, 30)
    with pytest.raises(IllegalEvent, match="up to 10 of 30"):
        store.take(T)
    with pytest.raises(IllegalEvent, match="no transfer"):
        store.take(TransferId("another"))


def test_a_late_chunk_of_a_dropped_transfer_lands_nowhere_even_when_it_is_expected_again() -> None:
    store = opened(0, 10)
    late = store.claim(T, Epoch(1), 0, 10)
    assert isinstance(late, Place)
    store.drop(T)
    assert store.expect(expect(0, 10, epoch=2)) is None
    late.view[:] = content(0, 10)
    assert store.land(late) == []
    with pytest.raises(IllegalEvent):
        store.take(T)


def test_taken_chunks_outlive_the_drop() -> None:
    store = opened(0, 10)
    put(store, 0, 10)
    [chunk] = store.take(T)
    store.drop(T)
    assert bytes(chunk.data) == content(0, 10)


def test_the_budget_counts_what_is_reserved_in_the_senders_dtype_once_it_is_known() -> None:
    store = staging(budget_tokens=100)
    assert store.expect(expect(0, 60)) is None
    wide = KvShape(2, 1, 2, "float32")
    assert store.admit(T, Epoch(1), SECRET, wide) is Reason.MEMORY
    assert store.used_bytes == 60 * SHAPE.bytes_per_token
    other = TransferId("other")
    assert store.expect(expect(0, 41, other)) == Reason.MEMORY
    assert store.expect(expect(0, 40, other)) is None
    store.drop(T)
    assert store.admit(other, Epoch(1), SECRET, wide) is None
    assert store.used_bytes == 80 * SHAPE.bytes_per_token
    store.drop(other)
    assert store.used_bytes == 0


def test_an_older_epoch_never_replaces_a_newer_one() -> None:
    store = staging()
    assert store.expect(expect(0, 10, epoch=2)) is None
    assert store.expect(expect(0, 10, epoch=1)) == Reason.EPOCH
    assert store.admit(T, Epoch(1), SECRET, SHAPE) is Reason.EPOCH
    assert store.admit(T, Epoch(2), SECRET, SHAPE) is None


def test_many_threads_land_their_own_chunks() -> None:
    store = opened(0, 400)
    threads = [threading.Thread(target=lambda at=at: put(store, at, at + 10)) for at in range(0, 400, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert all(bytes(chunk.data) == content(chunk.start, chunk.stop) for chunk in store.take(T))
