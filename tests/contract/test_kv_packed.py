"""KV that is packed for the way: right where both sides know the codec, plain where one does not, and never within a site."""

from collections.abc import Callable, Iterator

import pytest

from pdd.adapters.kv_memory_lines import Parcel, flipped
from pdd.core.events import KvCloseAcked, KvDamaged
from pdd.core.wire import ChunkFrame
from tests.contract.kv_bench import SHAPE, TcpBench

pytest.importorskip("zstandard")
TOKENS = 2000
RAW = TOKENS * SHAPE.bytes_per_token
Make = Callable[[bool, bool], TcpBench]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[TcpBench] = []

    def build(sender: bool, receiver: bool) -> TcpBench:
        made.append(TcpBench(2 * RAW, 256, packs=(sender, receiver)))
        return made[-1]

    yield build
    for bench in made:
        bench.close()


def crossed(bench: TcpBench, tokens: int = TOKENS) -> int:
    """The bytes that one transfer took on the way; it arrived right."""
    before = len(bench.sender.all(KvCloseAcked))
    bench.expect(0, tokens)
    bench.open()
    bench.offer(0, tokens)
    bench.finish()
    done = bench.until_event(bench.sender, KvCloseAcked, times=before + 1)
    assert bench.sender.pages.equal(bench.taken(), 0, tokens)
    bench.drop()
    return done.payload_bytes


def choose(bench: TcpBench, codec: str) -> None:
    """Every chunk from now on, whatever the line carries."""
    bench.err(lambda parcel: [parcel])
    for _ in range(3):
        crossed(bench)
    line = next(iter(bench.sender.link._lines.values()))  # type: ignore[union-attr]
    line.outbox.packing.choose = lambda rate, now: codec


def test_both_sides_know_the_codec_and_less_crosses(make: Make) -> None:
    bench = make(True, True)
    choose(bench, "zstd")
    assert crossed(bench) < 0.7 * RAW


@pytest.mark.parametrize(("sender", "receiver"), [(True, False), (False, True)])
def test_where_one_side_does_not_know_it_kv_crosses_as_it_is(make: Make, sender: bool, receiver: bool) -> None:
    assert crossed(make(sender, receiver)) == RAW


def test_nothing_is_packed_within_a_site(make: Make) -> None:
    bench = make(True, True)
    bench.near = True
    assert [crossed(bench) for _ in range(3)] == [RAW] * 3


def test_a_flipped_bit_in_a_packed_chunk_is_noticed_and_the_chunk_can_be_sent_again(make: Make) -> None:
    bench = make(True, True)
    choose(bench, "zstd")
    flips = iter([True])

    def flip_once(parcel: Parcel) -> list[Parcel]:
        if isinstance(parcel.frame, ChunkFrame) and parcel.payload and next(flips, False):
            return [Parcel(parcel.frame, flipped(parcel.payload, 40))]
        return [parcel]

    bench.err(flip_once)
    bench.receiver.events.clear()
    bench.expect(0, TOKENS)
    bench.open()
    bench.offer(0, TOKENS)
    assert bench.until_event(bench.receiver, KvDamaged).reason == "checksum"
    bench.until(lambda: len(bench.missing(0, TOKENS)) == 1 and bench.receiver.landed_tokens() >= TOKENS - 256)
    [(start, stop)] = bench.missing(0, TOKENS)
    bench.offer(start, stop)
    bench.until(lambda: bench.receiver.landed_tokens() == TOKENS)
    assert bench.sender.pages.equal(bench.taken(), 0, TOKENS)


def test_a_codec_is_chosen_by_what_was_seen_of_it(make: Make) -> None:
    """A loopback line is faster than any codec: after a few tries nothing is packed."""
    bench = make(True, True)
    for _ in range(4):
        crossed(bench)
    line = next(iter(bench.sender.link._lines.values()))  # type: ignore[union-attr]
    assert set(line.outbox.packing.seen) == {"zstd", "lz4"}
