"""Attention of a ragged batch over paged KV. All that depends on the step alone is laid down once, in `StepTables`; a layer writes its
K and V, then each sequence attends to where its tokens lie.

Rows of one sequence that came together see each other from the fresh values, and what was there before from the pages: so no mask
is ever made. In the last layer only the rows that are asked for have a query.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from ...core.steps import Slice
from .blocks import Part, attend_block, merge
from .chunks import ChunkKernel, worth_it
from .pages import KvPages, runs
from .rows import RowKernel, Run, SeenRuns

Kernel = TypeVar("Kernel", RowKernel, ChunkKernel)

LONG_CHUNK = 256  # rows times the query heads of a KV head; fewer are quicker in one call
SHORT_RUN = 128  # tokens; where runs are shorter on average, gathering them first is quicker than a call for each


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [first, last) are one sequence's. All see the tokens in `runs`, whose slots are `gathered` if they are many.

    One row alone finds itself there; of several each also sees those of its span up to itself.
    """

    first: int
    last: int
    runs: tuple[Run, ...]
    gathered: Tensor | None

    @property
    def alone(self) -> bool:
        return self.last - self.first == 1


@dataclass(frozen=True, slots=True)
class Queries:
    """`spans` in the order of rows. `singles`: what the kernel needs of rows that are alone, `single_rows` (None: all are)."""

    spans: tuple[Span, ...]
    singles: SeenRuns | None
    single_rows: Tensor | None


@dataclass(frozen=True, slots=True)
class StepTables:
    """`slots` and `positions` of each row; `asked`: the rows that end a slice to sample from, and `ends` as they query."""

    slots: Tensor
    positions: Tensor
    queries: Queries
    asked: Tensor
    ends: Queries | None  # None: all rows are asked for


class PagedAttention:
    """Of one engine: `heads` query heads over its pages."""

    def __init__(self, kv: KvPages, heads: int, threads: int = 1, *, kernel: bool = True) -> None:
        self.kv = kv
        self._heads = heads
        self._kernel = _made(lambda: RowKernel(kv, threads)) if kernel else None
        self._chunks = _made(ChunkKernel) if kernel and worth_it(kv, threads) else None

    # -- once in a step -----------------------------------------------------------------------------------------------

    def lay(self, slices: Sequence[Slice]) -> StepTables:
        slots: list[int] = []
        positions: list[int] = []
        firsts = []
        for part in slices:
            firsts.append(len(slots))
            for low, high in runs(part.sequence.pages, self.kv.page_size, part.start, part.stop):
                slots += range(low, high)
            positions += range(part.start, part.stop)
        asked = [first + part.stop - part.start - 1 for first, part in zip(firsts, slices, strict=True) if part.sample]
        ends = [Slice(part.sequence, part.stop - 1, part.stop, True) for part in slices if part.sample]
        return StepTables(
            self._tensor(slots),
            self._tensor(positions),
            self._queries(slices, firsts),
            self._tensor(asked),
            self._queries(ends, range(len(ends))) if len(ends) < len(slots) else None,
        )

    def _queries(self, slices: Sequence[Slice], firsts: Sequence[int]) -> Queries:
        spans = [self._span(part, first) for part, first in zip(slices, firsts, strict=True)]
        alone = [span for span in spans if span.alone]
        if self._kernel is None or not alone:
            return Queries(tuple(spans), None, None)
        rows = None if len(alone) == len(spans) else self._tensor([span.first for span in alone])
        return Queries(tuple(spans), self._kernel.lay([span.runs for span in alone]), rows)

    def _span(self, part: Slice, first: int) -> Span:
        rows = part.stop - part.start
        stop = part.stop if rows == 1 else part.start
        seen = tuple(runs(part.sequence.pages, self.kv.page_size, 0, stop))
        scattered = len(seen) > 2 and stop < len(seen) * SHORT_RUN and (rows > 1 or self._kernel is None)
        gathered = torch.cat([torch.arange(*run, device=self.kv.kv.device) for run in seen]) if scattered else None
        return Span(first, first + rows, seen, gathered)

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self.kv.kv.device)

    # -- in each layer ------------------------------------------------------------------------------------------------

    def write(self, layer: int, fused: Tensor, tables: StepTables) -> None:
        """`fused` [rows, heads + 2 * kv_heads, head_dim]: query, key and value heads, positions applied."""
        self.kv.put(layer, tables.slots, fused[:, self._heads :])

    def __call__(self, layer: int, fused: Tensor, queries: Queries) -> Tensor:
        """[rows, heads * head_dim]. All keys and values that are seen have been written."""
        query = fused[:, : self._heads].unflatten(1, (self.kv.shape.kv_heads, -1))
        if self._kernel is None or queries.singles is None:
            return torch.cat([self._attend_span(layer, query, fused, span) for span in queries.spans])
        if queries.single_rows is None:
            return self._kernel(layer, query, queries.singles)
        out = query.new_empty(len(query), self._heads * query.shape[-1])
        out[queries.single_rows] = self._kernel(layer, query[queries.single_rows], queries.singles)
        for span in queries.spans:
            if not span.alone:
                out[span.first : span.last] = self._attend_span(layer, query, fused, span)
        return out

    def _attend_span(self, layer: int, query: Tensor, fused: Tensor, span: Span) -> Tensor:
        if span.alone:  # the heads that share a KV head are rows of one block, so each key is read once
            return merge(self._attend_seen(layer, query[span.first, :, None], span)).view(1, -1)
        rows = slice(span.first, span.last)
        return self._attend_rows(layer, query[rows], fused[rows, self._heads :], span)

    def _attend_rows(self, layer: int, query: Tensor, fresh: Tensor, span: Span) -> Tensor:
        """query [rows, kv_heads, group, head_dim], fresh [rows, 2 * kv_heads, head_dim] -> [rows, heads * head_dim]."""
        rows, kv_heads, group, head_dim = query.shape
        if self._chunks is not None and rows * group >= LONG_CHUNK:
            return self._chunks(query, fresh.transpose(0, 1), list(self._seen(layer, span)))
        query = query.permute(1, 2, 0, 3)
        keys, values = fresh.transpose(0, 1)[:, None].expand(-1, group, -1, -1).split(kv_heads)
        parts = [attend_block(query, keys, values, causal=True)]
        if span.runs:
            folded = query.reshape(kv_heads, 1, group * rows, head_dim)
            parts += [
                Part(part.out.view(kv_heads, group, rows, head_dim), part.log_sum.view(kv_heads, group, rows))
                for part in self._attend_seen(layer, folded, span)
            ]
        return merge(parts).permute(2, 0, 1, 3).reshape(rows, -1)

    def _attend_seen(self, layer: int, query: Tensor, span: Span) -> list[Part]:
        """query [kv_heads, 1, rows, head_dim] over all tokens that the span sees in pages."""
        return [attend_block(query, keys, values) for keys, values in self._seen(layer, span)]

    def _seen(self, layer: int, span: Span) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys and values [kv_heads, 1, tokens, head_dim] that the span sees in pages, valid until it is asked for others."""
        if span.gathered is not None:
            yield self.kv.gather(layer, span.gathered)
            return
        keys, values = self.kv.layers[layer]
        for low, high in span.runs:
            yield keys.narrow(2, low, high - low), values.narrow(2, low, high - low)


def _made(make: Callable[[], Kernel]) -> Kernel | None:
    try:
        return make()
    except (ImportError, ValueError):
        return None
