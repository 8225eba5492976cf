"""Packing of KV: what comes out is what went in, and nothing that comes in can do more than raise FrameError."""

import contextlib
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.adapters.kv_codecs import ITEM_BYTES, codecs
from pdd.core.errors import FrameError

pytest.importorskip("zstandard")
pytest.importorskip("lz4")
CODECS = codecs()
names = pytest.mark.parametrize("name", ["zstd", "lz4"])
dtypes = st.sampled_from(sorted(ITEM_BYTES))


def looks_like_kv(items: int, dtype: str, seed: int = 0) -> bytes:
    """Normal numbers, as keys and values are: exponents repeat, mantissas do not."""
    rng = random.Random(seed)
    floats = [rng.gauss(0, 1) for _ in range(items)]
    if dtype == "float32":
        return struct.pack(f"<{items}f", *floats)
    if dtype == "float16":
        return struct.pack(f"<{items}e", *floats)
    return b"".join(struct.pack("<f", value)[2:] for value in floats)


def packed(name: str, raw: bytes, dtype: str) -> bytes:
    return b"".join(CODECS[name].pack(memoryview(raw), dtype))


def unpacked(name: str, data: bytes, size: int, dtype: str) -> bytes:
    target = memoryview(bytearray(size))
    CODECS[name].unpack(memoryview(data), target, dtype)
    return bytes(target)


@names
@given(data=st.binary(max_size=4000), dtype=dtypes)
def test_whatever_goes_in_comes_out(name: str, data: bytes, dtype: str) -> None:
    raw = data[: len(data) // 4 * 4]
    assert unpacked(name, packed(name, raw, dtype), len(raw), dtype) == raw


@names
@pytest.mark.parametrize(("dtype", "ratio"), [("bfloat16", 1.1), ("float32", 1.05)])
def test_kv_takes_less_room_packed(name: str, dtype: str, ratio: float) -> None:
    raw = looks_like_kv(100_000, dtype)
    data = packed(name, raw, dtype)
    assert len(raw) / len(data) > ratio
    assert unpacked(name, data, len(raw), dtype) == raw


@names
def test_noise_is_not_blown_up_by_more_than_the_table(name: str) -> None:
    raw = random.Random(1).randbytes(1 << 18)
    assert len(packed(name, raw, "bfloat16")) <= len(raw) + 8


@names
@given(cut=st.integers(0, 3000), dtype=dtypes)
def test_a_chunk_cut_short_is_an_error(name: str, cut: int, dtype: str) -> None:
    raw = looks_like_kv(2000, dtype)
    data = packed(name, raw, dtype)
    with pytest.raises(FrameError):
        unpacked(name, data[: min(cut, len(data) - 1)], len(raw), dtype)


@names
@settings(max_examples=300)
@given(at=st.integers(0, 5000), value=st.integers(0, 255), dtype=dtypes)
def test_a_changed_byte_gives_an_error_or_as_many_bytes_and_touches_nothing_else(
    name: str, at: int, value: int, dtype: str
) -> None:
    raw = looks_like_kv(2000, dtype)
    data = bytearray(packed(name, raw, dtype))
    data[at % len(data)] = value
    memory = bytearray(b"\xaa" * (len(raw) + 64))
    target = memoryview(memory)[32 : 32 + len(raw)]
    with contextlib.suppress(FrameError):
        CODECS[name].unpack(memoryview(data), target, dtype)
    assert memory[:32] == memory[-32:] == b"\xaa" * 32


@names
@given(data=st.binary(max_size=300), size=st.integers(0, 200), dtype=dtypes)
def test_noise_is_an_error(name: str, data: bytes, size: int, dtype: str) -> None:
    try:
        result = unpacked(name, data, size * 4, dtype)
    except FrameError:
        return
    assert len(result) == size * 4


@names
def test_a_chunk_that_says_it_is_huge_is_refused_before_anything_is_allocated(name: str) -> None:
    bomb = b"\0" * (1 << 24)
    plane = packed(name, bomb, "bfloat16")
    with pytest.raises(FrameError):
        unpacked(name, plane, 2000, "bfloat16")
