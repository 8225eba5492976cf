"""The tensor behind the pages: all KV of one engine, [layers, slots, 2 (K, V), kv_heads, head_dim]; slot = page * page_size + offset.

This is the wire's canonical layout with tokens in slots, so that a range of tokens enters and leaves in one strided copy.
Slots of computed tokens never change while their pages are held: reading them needs no lock.
"""

import ctypes
from collections.abc import Iterator, Sequence

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
        slots = (shape.layers, pages * page_size, 2, shape.kv_heads, shape.head_dim)
        self.kv = torch.zeros(
            slots, dtype=DTYPES[shape.dtype], device=device
        )  # untouched pages cost no memory on a CPU
        self._gathered = self.kv.new_empty(0, page_size, 2, shape.kv_heads, shape.head_dim)

    def gather(self, layer: int, pages: Tensor) -> Tensor:
        """One layer's K and V of scattered pages as [slots, 2, kv_heads, head_dim]; valid until the next call."""
        if len(self._gathered) < len(pages):
            self._gathered = self.kv.new_empty(2 * len(pages), *self._gathered.shape[1:])
        by_page = self.kv[layer].view(self.page_count, *self._gathered.shape[1:])
        return torch.index_select(by_page, 0, pages, out=self._gathered[: len(pages)]).flatten(0, 1)

    def read(self, pages: Sequence[int], start: int, stop: int) -> memoryview:
        """Tokens [start, stop) in the canonical layout: flat bytes, owned by the result. Any thread may ask."""
        layers, _, *token = self.kv.shape
        out = torch.empty(layers, stop - start, *token, dtype=self.kv.dtype)
        at = 0
        for first, last in runs(pages, self.page_size, start, stop):
            out[:, at : at + last - first].copy_(self.kv[:, first:last])
            at += last - first
        return out.view(torch.uint8).flatten().numpy().data

    def write(self, pages: Sequence[int], chunk: KvChunk) -> None:
        """Put the chunk into its slots, converting its dtype, straight from its memory."""
        check(chunk, self.shape)
        source = as_tensor(chunk)
        at = 0
        for first, last in runs(pages, self.page_size, chunk.start, chunk.stop):
            self.kv[:, first:last].copy_(source[:, at : at + last - first])
            at += last - first


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
        import numpy as np

        address = np.frombuffer(chunk.data, dtype=np.uint8).ctypes.data
        data = (ctypes.c_char * chunk.data.nbytes).from_address(address)
    shape = chunk.shape
    flat = torch.frombuffer(data, dtype=DTYPES[shape.dtype])
    return flat.view(shape.layers, chunk.stop - chunk.start, 2, shape.kv_heads, shape.head_dim)
