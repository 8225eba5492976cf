"""Attention of a ragged batch over paged KV: one function that transformers' model classes call in every layer.

All that depends on the step alone (slots, spans, masks) is laid down once in `StepTables`; a layer only copies, looks up and attends.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ...core.steps import Slice
from .pages import KvPages

ATTENTION = "pdd_paged"


@dataclass(frozen=True, slots=True)
class Span:
    """Rows [first, last) of the batch belong to one sequence, and see its first `length` tokens.

    Those lie in slots from `run` on, or, where its pages are scattered (`run` is None), in `pages`.
    """

    first: int
    last: int
    length: int
    run: int | None
    pages: Tensor
    mask: Tensor | None  # [rows, length]; None: causal from position 0, or one row that sees everything


@dataclass(frozen=True, slots=True)
class StepTables:
    """`slots`: where each row's K and V go."""

    kv: KvPages
    slots: Tensor
    spans: tuple[Span, ...]


def lay_tables(slices: Sequence[Slice], kv: KvPages) -> tuple[StepTables, Tensor]:
    """The step's tables, and the position of each row."""
    device = kv.kv.device
    spans, slots, positions = [], [], []
    first = 0
    for part in slices:
        pages = torch.tensor(part.sequence.pages[: -(-part.stop // kv.page_size)])
        position = torch.arange(part.start, part.stop)
        slots.append(pages[position // kv.page_size] * kv.page_size + position % kv.page_size)
        positions.append(position)
        rows = part.stop - part.start
        in_a_run = bool((pages.diff() == 1).all())
        mask = None
        if rows > 1 and part.start > 0:
            mask = torch.ones(rows, part.stop, dtype=torch.bool, device=device).tril(part.start)
        run = int(pages[0]) * kv.page_size if in_a_run else None
        spans.append(Span(first, first + rows, part.stop, run, pages.to(device), mask))
        first += rows
    return StepTables(kv, torch.cat(slots).to(device), tuple(spans)), torch.cat(positions).to(device)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    tables: StepTables,
    **_: Any,
) -> tuple[Tensor, None]:
    """query [1, heads, rows, head_dim], key and value [1, kv_heads, rows, head_dim] -> [1, rows, heads, head_dim]."""
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    kv = tables.kv.kv[layer]
    kv[:, 0].index_copy_(0, tables.slots, key[0].transpose(0, 1))
    kv[:, 1].index_copy_(0, tables.slots, value[0].transpose(0, 1))
    out = query.new_empty(query.shape[2], query.shape[1], query.shape[3])
    for span in tables.spans:
        rows = slice(span.first, span.last)
        seen = kv[span.run :] if span.run is not None else tables.kv.gather(layer, span.pages)
        out[rows] = _attend_span(query[:, :, rows], seen[: span.length], span.mask, scaling)
    return out[None], None


def _attend_span(query: Tensor, seen: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """query [1, heads, rows, head_dim], seen [length, 2, kv_heads, head_dim] -> [rows, heads, head_dim]."""
    _, heads, rows, head_dim = query.shape
    keys, values = seen[None, :, 0].transpose(1, 2), seen[None, :, 1].transpose(1, 2)
    kv_heads = keys.shape[1]
    if rows == 1:  # the query heads that share a KV head become rows: each key is read once
        query = query.reshape(1, kv_heads, heads // kv_heads, head_dim)
        return scaled_dot_product_attention(query, keys, values, scale=scaling).reshape(1, heads, head_dim)
    out = scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=heads != kv_heads
    )
    return out[0].transpose(0, 1)
