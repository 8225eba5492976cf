"""Attention over one block of keys, and the merging of blocks: what a row sees may lie in several places, its pages in any order.

A block's answer carries the logarithm of its weights' sum, from which the parts' weights follow (as in flash attention).
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    out: Tensor  # [batch, heads, rows, head_dim]
    log_sum: Tensor  # [batch, heads, rows], float32


def attend_block(query: Tensor, keys: Tensor, values: Tensor, *, causal: bool = False) -> Part:
    """[batch, heads, rows, head_dim] over [batch, heads, tokens, head_dim]; `causal`: row i sees tokens up to i."""
    if query.device.type == "cpu":
        return Part(*torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, keys, values, 0.0, causal))
    return attend_block_plainly(query, keys, values, causal=causal)


def attend_block_plainly(query: Tensor, keys: Tensor, values: Tensor, *, causal: bool = False) -> Part:
    """The same by matrix products, on any device."""
    scores = (query.float() @ keys.float().transpose(-1, -2)) * query.shape[-1] ** -0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores.masked_fill_(later, -torch.inf)
    log_sum = scores.logsumexp(-1)
    return Part(((scores - log_sum[..., None]).exp() @ values.float()).to(query.dtype), log_sum)


def merge(parts: Sequence[Part]) -> Tensor:
    """Attention over all blocks together: each part weighs as much as its keys do."""
    if len(parts) == 1:
        return parts[0].out
    shares = torch.stack([part.log_sum for part in parts]).softmax(0)[..., None]
    total = parts[0].out * shares[0]
    for part, share in zip(parts[1:], shares[1:], strict=True):
        total.addcmul_(part.out, share)
    return total.to(parts[0].out.dtype)
