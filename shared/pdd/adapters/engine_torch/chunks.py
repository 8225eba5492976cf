"""Attention of a prefill chunk's rows where torch's own leaves a processor's bfloat16 products unused.

Scores are taken in float32. Weights become bfloat16 before they are multiplied with the values, as in torch's flash attention.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from .pages import KvPages

ROWS, TOKENS = 768, 512  # of one product: a tile of scores stays in the cache
Block = tuple[Tensor, Tensor, int]  # keys and values [tokens, head_dim], and how many of them the first row sees


class ChunkKernel:
    """The query heads of one KV head are rows of one product."""

    def __init__(self) -> None:
        """ImportError without numba."""
        from .row_kernel import weigh

        self._weigh = weigh
        one, square = np.zeros(1, np.float32), np.zeros((1, 1), np.float32)
        weigh(square, 1, 1, one, one.copy(), square.copy())  # compiled now, not in a step

    def __call__(self, query: Tensor, fresh: Tensor, seen: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """[rows, heads * head_dim], for query [rows, kv_heads, group, head_dim].

        Row i sees fresh [2 * kv_heads, rows, head_dim] up to i, and all of `seen`, each [kv_heads, 1, tokens, head_dim].
        """
        rows, kv_heads, group, head_dim = query.shape
        out = query.new_empty(rows, kv_heads, group, head_dim)
        step = max(1, ROWS // group)
        for head in range(kv_heads):
            before = [(keys[head, 0], values[head, 0]) for keys, values in seen]
            keys, values = fresh[head], fresh[kv_heads + head]
            for first in range(0, rows, step):
                tile = slice(first, first + step)
                blocks = [*_blocks([*before, (keys[:first], values[:first])]), (keys[tile], values[tile], 1)]
                scaled = query[tile, head].float().mul_(head_dim**-0.5)
                out[tile, head] = self._attend(scaled.flatten(0, 1), group, blocks).view_as(scaled)
        return out.flatten(1)

    def _attend(self, query: Tensor, group: int, blocks: Iterable[Block]) -> Tensor:
        """query [rows * group, head_dim], scaled, in float32 -> the same."""
        best, total = np.full(len(query), -1e30, np.float32), np.zeros(len(query), np.float32)
        out = torch.zeros_like(query)
        for keys, values, first in blocks:
            scores = query @ keys.float().T
            self._weigh(scores.numpy(), first, group, best, total, out.numpy())
            out += scores.to(values.dtype) @ values
        return out.div_(torch.from_numpy(total)[:, None])


def _blocks(parts: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Block]:
    """Of what every row sees."""
    for keys, values in parts:
        for low in range(0, len(keys), TOKENS):
            block = keys[low : low + TOKENS]
            yield block, values[low : low + TOKENS], len(block)


def worth_it(kv: KvPages, threads: int) -> bool:
    """Torch's flash attention multiplies by MKL, at float32's pace where bfloat16 products are not Intel's; with AMX it does not.

    Weights are taken by one thread here, so with many threads torch's own is quicker again.
    """
    return (
        (kv.kv.device.type, kv.kv.dtype) == ("cpu", torch.bfloat16)
        and torch.cpu._is_avx512_bf16_supported()
        and not torch.cpu._is_amx_tile_supported()
        and threads <= 2
    )
