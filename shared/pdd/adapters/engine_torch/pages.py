"""The tensor behind the pages: all KV of one engine, [layers, 2 (K, V), kv_heads, slots, head_dim]; slot = page * page_size + offset.

One head's keys lie together, which halves the time that attention takes to read them; a range of tokens enters and leaves the
wire's canonical layout, where one token's heads lie together, in one strided copy. Slots of computed tokens never change while their
pages are held: reading them needs no lock.
"""

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ...core.errors import EngineError
from ...ports import KvChunk, KvShape

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def runs(pages: Sequence[int], page_size: int, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Slots [first, last) that hold tokens [start, stop), in order; neighbouring pages make one run."""
    first = last = -1
    for index in range(start // page_size, -(-stop // page_size)):
        at = pages[index] * page_size
        low = at + max(start - index * page_size, 0)
        high = at + min(stop - index * page_size, page_size)
        if low == last:
            last = high
            continue
        if last > first:
            yield first, last
        first, last = low, high
    if last > first:
        yield first, last


class KvPages:
    def __init__(self, shape: KvShape, pages: int, page_size: int, device: str) -> None:
        self.shape = shape
        self.page_size = page_size
        self.page_count = pages
        self.kv = _zeros(shape, pages * page_size, device)
        # Each [kv_heads, 1, slots, head_dim].
        self.layers = [(keys[:, None], values[:, None]) for keys, values in self.kv]
        self._flat = [layer.flatten(0, 1) for layer in self.kv]
        self._gathered = self.kv.new_empty(2 * shape.kv_heads, 0, shape.head_dim)

    def put(self, layer: int, slots: Tensor, fresh: Tensor) -> None:
        """fresh [rows, 2 * kv_heads, head_dim]: all keys' heads, then all values', of the tokens whose `slots` are given."""
        self._flat[layer].index_copy_(1, slots, fresh.transpose(0, 1))

    def gather(self, layer: int, slots: Tensor) -> tuple[Tensor, Tensor]:
        """One layer's K and V of scattered tokens, each [kv_heads, 1, tokens, head_dim]; valid until the next call."""
        count, heads = len(slots), self.shape.kv_heads
        if self._gathered.shape[1] < count:
            self._gathered = self.kv.new_empty(2 * heads, 2 * count, self.shape.head_dim)
        out = self._gathered.view(-1)[: 2 * heads * count * self.shape.head_dim].view(2 * heads, count, -1)
        torch.index_select(self._flat[layer], 1, slots, out=out)
        return out[:heads, None], out[heads:, None]

    def read(self, pages: Sequence[int], start: int, stop: int) -> memoryview:
        """Tokens [start, stop) in the canonical layout: flat bytes, owned by the result. Any thread may ask."""
        layers, _, heads, _, head_dim = self.kv.shape
        out = torch.empty(layers, stop - start, 2, heads, head_dim, dtype=self.kv.dtype)
        at = 0
        for first, last in runs(pages, self.page_size, start, stop):
            out[:, at : at + last - first].copy_(_canonical(self.kv[:, :, :, first:last]))
            at += last - first
        return out.view(torch.uint8).flatten().numpy().data

    def write(self, pages: Sequence[int], chunk: KvChunk) -> None:
        """Put the chunk into its slots, converting its dtype, straight from its memory."""
        check(chunk, self.shape)
        source = as_tensor(chunk)
        at = 0
        for first, last in runs(pages, self.page_size, chunk.start, chunk.stop):
            _canonical(self.kv[:, :, :, first:last]).copy_(source[:, at : at + last - first])
            at += last - first


def _zeros(shape: KvShape, slots: int, device: str) -> Tensor:
    """On a CPU pages that nobody has written cost no memory: numpy asks for zeroed memory where torch would write it."""
    axes, dtype = (shape.layers, 2, shape.kv_heads, slots, shape.head_dim), DTYPES[shape.dtype]
    if device != "cpu":
        return torch.zeros(axes, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(axes, np.uint32 if dtype is torch.float32 else np.uint16)).view(dtype)


def _canonical(kv: Tensor) -> Tensor:
    """[layers, 2, kv_heads, tokens, head_dim] seen in the wire's order of axes."""
    return kv.permute(0, 3, 1, 2, 4)


def check(chunk: KvChunk, ours: KvShape) -> None:
    """EngineError where the chunk cannot be this model's KV."""
    theirs = chunk.shape
    if (theirs.layers, theirs.kv_heads, theirs.head_dim) != (ours.layers, ours.kv_heads, ours.head_dim):
        raise EngineError(f"KV of another shape: {theirs}, not {ours}")
    if theirs.dtype not in DTYPES:
        raise EngineError(f"KV of unknown dtype {theirs.dtype!r}")
    if chunk.stop <= chunk.start:
        raise EngineError(f"KV of no tokens: [{chunk.start}, {chunk.stop})")
    expected = (chunk.stop - chunk.start) * theirs.bytes_per_token
    if chunk.data.nbytes != expected:
        raise EngineError(f"KV of tokens [{chunk.start}, {chunk.stop}) has {chunk.data.nbytes} bytes, not {expected}")


def as_tensor(chunk: KvChunk) -> Tensor:
    """The chunk's memory as [layers, tokens, 2, kv_heads, head_dim], shared and never written."""
    data: memoryview | ctypes.Array[ctypes.c_char] = chunk.data
    if chunk.data.readonly:  # torch takes writable buffers only
        address = np.frombuffer(chunk.data, dtype=np.uint8).ctypes.data
        data = (ctypes.c_char * chunk.data.nbytes).from_address(address)
    shape = chunk.shape
    flat = torch.frombuffer(data, dtype=DTYPES[shape.dtype])
    return flat.view(shape.layers, chunk.stop - chunk.start, 2, shape.kv_heads, shape.head_dim)
