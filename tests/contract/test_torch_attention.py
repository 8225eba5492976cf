"""Attention over pages by three ways, the compiled kernel, torch's own and plain matrix products, each against the textbook."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from numba import njit
from torch import Tensor

from pdd.adapters.engine_torch.attention import PagedAttention
from pdd.adapters.engine_torch.blocks import Part, attend_block, attend_block_plainly, merge
from pdd.adapters.engine_torch.chunks import ChunkKernel
from pdd.adapters.engine_torch.pages import KvPages
from pdd.adapters.engine_torch.row_kernel import compiled, exp
from pdd.adapters.engine_torch.rows import RowKernel
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.sampling import Sampling
from pdd.core.steps import Sequence, Slice
from pdd.ports import KvShape

HEADS, KV_HEADS, HEAD_DIM, PAGE = 6, 2, 24, 16
ROWS = 300  # times three query heads of a KV head
LENGTHS = (1, 2, 16, 17, 63, 64, 65, 200)


def textbook(query: Tensor, keys: Tensor, values: Tensor, first: int) -> Tensor:
    """query [rows, heads, head_dim] from position `first` on, keys and values [tokens, kv_heads, head_dim], one dot product at a time."""
    rows, heads, head_dim = query.shape
    group = heads // keys.shape[1]
    out = torch.empty_like(query, dtype=torch.float64)
    for row in range(rows):
        seen = slice(0, first + row + 1)
        for head in range(heads):
            scores = keys[seen, head // group].double() @ query[row, head].double() * head_dim**-0.5
            out[row, head] = scores.softmax(0) @ values[seen, head // group].double()
    return out.flatten(1)


class Bench:
    """Random K and V of several sequences on pages in any order; what each row should see is kept beside."""

    def __init__(self, dtype: str, *, scattered: bool = True, **how: int | bool) -> None:
        shape = KvShape(1, KV_HEADS, HEAD_DIM, dtype)
        self.kv = KvPages(shape, 256, PAGE, "cpu")
        self.attention = PagedAttention(self.kv, HEADS, **how)  # type: ignore[arg-type]
        self.free = list(range(256))
        if scattered:
            random.Random(2).shuffle(self.free)
        self.fused: list[Tensor] = []
        self.sequences: list[Sequence] = []

    def add(self, tokens: int) -> None:
        pages = [self.free.pop(0) for _ in range(-(-tokens // PAGE))]
        key = Key(RequestId(str(len(self.sequences))), Epoch(1))
        self.sequences.append(Sequence(key, [0] * tokens, tokens, Sampling(1), pages=pages))
        self.fused.append(torch.randn(tokens, HEADS + 2 * KV_HEADS, HEAD_DIM).to(self.kv.kv.dtype))

    def compute(self, ranges: list[tuple[int, int]]) -> Tensor:
        slices = [
            Slice(sequence, start, stop, True) for sequence, (start, stop) in zip(self.sequences, ranges, strict=True)
        ]
        fused = torch.cat([rows[start:stop] for rows, (start, stop) in zip(self.fused, ranges, strict=True)])
        tables = self.attention.lay(slices)
        self.attention.write(0, fused, tables)
        return self.attention(0, fused, tables.queries)

    def expected(self, ranges: list[tuple[int, int]]) -> Tensor:
        parts = []
        for fused, (start, stop) in zip(self.fused, ranges, strict=True):
            keys, values = fused[:stop, HEADS:].split(KV_HEADS, 1)
            parts.append(textbook(fused[start:stop, :HEADS], keys, values, start))
        return torch.cat(parts)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("how", [{}, {"kernel": False}, {"threads": 3}], ids=["kernel", "blocks", "threads"])
def test_decodes_extends_and_prefills_in_one_step_see_exactly_their_own(
    dtype: str, scattered: bool, how: dict[str, int | bool]
) -> None:
    """Each sequence up to some token first, then all at once: some go on by one token, some by more."""
    bench = Bench(dtype, scattered=scattered, **how)
    for length in LENGTHS:
        bench.add(length)
    before = [(0, max(0, length - 1 - 13 * (n % 3))) for n, length in enumerate(LENGTHS)]
    for sequence, fused, (_, stop) in zip(bench.sequences, bench.fused, before, strict=True):
        if stop:
            bench.attention.write(0, fused[:stop], bench.attention.lay([Slice(sequence, 0, stop, False)]))
    now = [(stop, length) for (_, stop), length in zip(before, LENGTHS, strict=True)]
    tolerance = 2e-6 if dtype == "float32" else 2e-2
    assert (bench.compute(now) - bench.expected(now)).abs().max() < tolerance


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("start", [0, 100, 560])
def test_the_chunks_kernel_sees_exactly_what_comes_before_each_row(dtype: str, scattered: bool, start: int) -> None:
    """Longer than a tile of rows, after more than a block of tokens; taken on any processor here, whether worth it or not."""
    bench = Bench(dtype, scattered=scattered)
    bench.attention._chunks = ChunkKernel()
    bench.add(start + ROWS)
    bench.attention.write(0, bench.fused[0][:start], bench.attention.lay([Slice(bench.sequences[0], 0, start, False)]))
    now = [(start, start + ROWS)]
    tolerance = 2e-6 if dtype == "float32" else 2e-2
    assert (bench.compute(now) - bench.expected(now)).abs().max() < tolerance


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("attend", [attend_block, attend_block_plainly])
def test_blocks_of_a_cpu_and_of_any_device_give_attention_and_its_sum(attend: object, causal: bool) -> None:
    query, keys, values = torch.randn(3, 2, 2, 20, HEAD_DIM).unbind(0)
    part = attend(query, keys, values, causal=causal)  # type: ignore[operator]
    mask = torch.ones(20, 20, dtype=torch.bool).tril() if causal else torch.ones(20, 20, dtype=torch.bool)
    scores = (query @ keys.transpose(-1, -2) * HEAD_DIM**-0.5).masked_fill(~mask, -torch.inf)
    assert torch.allclose(part.out, scores.softmax(-1) @ values, atol=1e-6)
    assert torch.allclose(part.log_sum, scores.logsumexp(-1), atol=1e-6)


def test_parts_that_are_merged_are_the_whole() -> None:
    query, keys, values = (
        torch.randn(2, 1, 5, HEAD_DIM),
        torch.randn(2, 1, 90, HEAD_DIM),
        torch.randn(2, 1, 90, HEAD_DIM),
    )
    keys[:, :, 30:40] *= 20  # one part outweighs the others by far
    parts = [attend_block(query, keys[:, :, a:b], values[:, :, a:b]) for a, b in ((0, 30), (30, 41), (41, 90))]
    assert torch.allclose(merge(parts), attend_block(query, keys, values).out, atol=1e-6)
    assert merge([Part(parts[0].out, parts[0].log_sum)]) is parts[0].out


def test_the_kernels_exponential_is_right_to_the_last_places() -> None:
    x = -np.concatenate([np.linspace(0, 87, 20_001), [1e-9, 1e-30]]).astype(np.float32)
    ours = np.array([exp(value) for value in x])
    assert ours.dtype == np.float32 or ours.dtype == np.float64
    assert np.abs(ours / np.exp(x.astype(np.float64)) - 1).max() < 3e-7
    assert exp(np.float32(-1e30)) < 2e-38 and exp(np.float32(0)) == 1


def test_where_nothing_can_be_kept_on_disk_the_kernel_is_compiled_all_the_same() -> None:
    found: dict[str, Any] = {}
    exec("def more(x):\n    return x + 1", found)  # in no file, so there is no place beside it
    with pytest.raises(RuntimeError, match="cannot cache"):
        njit(cache=True)(found["more"])
    assert compiled(found["more"])(2) == 3


def test_the_kernel_shares_rows_among_threads_by_their_tokens() -> None:
    kernel = RowKernel(KvPages(KvShape(1, 1, 8, "float32"), 64, 16, "cpu"), threads=3)
    shares = kernel.lay([[(0, 100)], [(0, 100)], [(0, 600)], [(0, 100)], [(0, 300)]]).shares
    assert [row for begin, end in shares for row in range(begin, end)] == list(range(5)) and len(shares) == 3
    assert kernel.lay([[(0, 5)]]).shares == ((0, 1),)


def test_what_the_kernel_cannot_read_is_left_to_the_blocks() -> None:
    with pytest.raises(ValueError, match="float16"):
        RowKernel(KvPages(KvShape(1, 1, 8, "float16"), 64, 16, "cpu"), threads=1)
