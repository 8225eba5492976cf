"""Attention of a ragged batch over paged KV. All that depends on the step alone is laid down once, in `StepTables`; a layer writes its
K and V, then each sequence attends to where its tokens lie.

Rows of one sequence that came together see each other from the fresh values, and what was there before from the pages: so no mask
is ever made.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.steps import Slice
from .blocks import Part, attend_block, merge
from .pages import KvPages, runs

SHORT_RUN = 128  # tokens; where runs are shorter on average, gathering them first is quicker than a call for each


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [first, last) of the step are one sequence's. All see the tokens in `runs` of slots (first, last), or in `gathered` slots.

    One row alone finds itself there; of several each also sees those of its span up to itself.
    """

    first: int
    last: int
    runs: tuple[tuple[int, int], ...]
    gathered: Tensor | None


@dataclass(frozen=True, slots=True)
class StepTables:
    """`slots` and `positions` of each row; `spans` in the order of rows."""

    kv: KvPages
    slots: Tensor
    positions: Tensor
    spans: tuple[Span, ...]


def lay_tables(slices: Sequence[Slice], kv: KvPages) -> StepTables:
    device, size = kv.kv.device, kv.page_size
    spans, slots, positions = [], [], []
    for part in slices:
        pages = part.sequence.pages
        first = len(slots)
        for low, high in runs(pages, size, part.start, part.stop):
            slots += range(low, high)
        positions += range(part.start, part.stop)
        alone = part.stop - part.start == 1
        seen = tuple(runs(pages, size, 0, part.stop if alone else part.start))
        scattered = len(seen) > 2 and part.stop < len(seen) * SHORT_RUN
        gathered = torch.cat([torch.arange(*run, device=device) for run in seen]) if scattered else None
        spans.append(Span(first, len(slots), seen, gathered))
    return StepTables(kv, torch.tensor(slots, device=device), torch.tensor(positions, device=device), tuple(spans))


def attend(layer: int, fused: Tensor, heads: int, tables: StepTables) -> Tensor:
    """`fused` [rows, heads + 2 * kv_heads, head_dim]: query, key and value heads, positions applied -> [rows, heads * head_dim]."""
    tables.kv.put(layer, tables.slots, fused[:, heads:])
    query = fused[:, :heads].unflatten(1, (tables.kv.shape.kv_heads, -1))
    out = []
    for span in tables.spans:
        if span.last - span.first == 1:
            out.append(_attend_row(layer, query[span.first], span, tables.kv))
        else:
            rows = slice(span.first, span.last)
            out.append(_attend_rows(layer, query[rows], fused[rows, heads:], span, tables.kv))
    return out[0] if len(out) == 1 else torch.cat(out)


def _attend_row(layer: int, query: Tensor, span: Span, kv: KvPages) -> Tensor:
    """query [kv_heads, group, head_dim]: the heads that share a KV head are rows of one block, so each key is read once."""
    return merge(_attend_seen(layer, query[:, None], span, kv)).view(1, -1)


def _attend_rows(layer: int, query: Tensor, fresh: Tensor, span: Span, kv: KvPages) -> Tensor:
    """query [rows, kv_heads, group, head_dim], fresh [rows, 2 * kv_heads, head_dim] -> [rows, heads * head_dim]."""
    rows, kv_heads, group, head_dim = query.shape
    query = query.permute(1, 2, 0, 3)
    keys, values = fresh.transpose(0, 1)[:, None].expand(-1, group, -1, -1).split(kv_heads)
    parts = [attend_block(query, keys, values, causal=True)]
    if span.runs:
        folded = query.reshape(kv_heads, 1, group * rows, head_dim)
        parts += [
            Part(part.out.view(kv_heads, group, rows, head_dim), part.log_sum.view(kv_heads, group, rows))
            for part in _attend_seen(layer, folded, span, kv)
        ]
    return merge(parts).permute(2, 0, 1, 3).reshape(rows, -1)


def _attend_seen(layer: int, query: Tensor, span: Span, kv: KvPages) -> list[Part]:
    """query [kv_heads, 1, rows, head_dim] over all tokens that the span sees in pages."""
    if span.gathered is not None:
        return [attend_block(query, *kv.gather(layer, span.gathered))]
    keys, values = kv.layers[layer]
    return [
        attend_block(query, keys.narrow(2, low, high - low), values.narrow(2, low, high - low))
        for low, high in span.runs
    ]
