"""Choosing a codec: tried before it is judged, worth it on a slow line, and not on a fast one."""

import pytest

from pdd.core.packing import TRY_AGAIN_S, Packing


def measured(**codecs: tuple[float, float]) -> Packing:
    """By name, (ratio, bytes a second of one thread)."""
    packing = Packing(threads=2)
    packing.codecs = list(codecs)
    for name, (ratio, rate) in codecs.items():
        packing.learned(name, 1_000_000, round(1_000_000 / ratio), 1_000_000 / rate, 0.0)
    return packing


@pytest.mark.parametrize(
    ("line", "chosen"),
    [(10e6, "zstd"), (400e6, "zstd"), (600e6, "lz4"), (2000e6, "")],
)
def test_the_codec_that_brings_most_through_is_chosen(line: float, chosen: str) -> None:
    assert measured(zstd=(1.45, 300e6), lz4=(1.2, 600e6)).choose(line, 1.0) == chosen


def test_what_does_not_pack_is_not_packed() -> None:
    assert measured(zstd=(1.02, 3000e6)).choose(1e6, 1.0) == ""


def test_a_codec_is_tried_before_it_is_judged_and_again_after_a_while() -> None:
    packing = measured(zstd=(1.02, 3000e6))
    packing.codecs = ["zstd", "lz4"]
    assert packing.choose(1e6, 1.0) == "lz4"
    packing.learned("lz4", 100, 99, 1e-6, 1.0)
    assert packing.choose(1e6, 2.0) == ""
    assert packing.choose(1e6, 2.0 + TRY_AGAIN_S) == "zstd"


def test_without_a_codec_that_both_sides_know_nothing_is_packed() -> None:
    assert Packing(threads=2).choose(1e6, 0.0) == ""


def test_what_is_learned_moves_towards_what_is_seen() -> None:
    packing = measured(zstd=(1.4, 300e6))
    for _ in range(20):
        packing.learned("zstd", 1_000_000, 1_000_000, 0.001, 1.0)
    assert packing.seen["zstd"].ratio == pytest.approx(1.0, abs=0.01)
    assert packing.crossing("zstd", 1000) == pytest.approx(1000, abs=10)
    assert packing.crossing("lz4", 1000) == 1000
