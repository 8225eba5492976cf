"""Attention of rows that are alone in their sequence's step (decodes): by the compiled kernel where it can run, else call by call."""

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .pages import KvPages

Run = tuple[int, int]  # slots [low, high)


@dataclass(frozen=True, slots=True)
class SeenRuns:
    """Row r sees runs[first_run[r]:first_run[r + 1]]. `shares`: rows [begin, end) for each thread, with about as many tokens."""

    first_run: NDArray[np.int64]
    runs: NDArray[np.int64]
    shares: tuple[tuple[int, int], ...]


class RowKernel:
    """Threads beyond the first are its own: torch's do not run such loops."""

    def __init__(self, kv: KvPages, threads: int) -> None:
        """ImportError without numba, ValueError where the kernel cannot read such KV."""
        if kv.kv.device.type != "cpu" or kv.kv.dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"no kernel for {kv.kv.dtype} on {kv.kv.device}")
        from .row_kernel import attend_rows

        self._attend = attend_rows
        stored = kv.kv if kv.kv.dtype is torch.float32 else kv.kv.view(torch.uint16)
        self._layers = [(keys, values) for keys, values in stored.numpy()]
        self._scale = np.float32(kv.shape.head_dim**-0.5)
        self._threads = threads
        self._others = ThreadPoolExecutor(threads - 1, "attention") if threads > 1 else None

    def lay(self, seen: Sequence[Sequence[Run]]) -> SeenRuns:
        first_run = np.cumsum([0, *map(len, seen)])
        runs = np.array([run for row in seen for run in row]).reshape(-1, 2)
        if self._others is None or len(seen) < 2:
            return SeenRuns(first_run, runs, ((0, len(seen)),))
        tokens = np.cumsum([sum(high - low for low, high in row) for row in seen])
        cuts = np.searchsorted(tokens, tokens[-1] * np.arange(1, self._threads) / self._threads, side="right")
        borders = [0, *cuts.tolist(), len(seen)]
        return SeenRuns(first_run, runs, tuple(itertools.pairwise(borders)))

    def __call__(self, layer: int, query: Tensor, seen: SeenRuns) -> Tensor:
        """query [rows, kv_heads, group, head_dim] -> [rows, heads * head_dim], in its dtype."""
        asked = query.float().contiguous()
        out = torch.empty_like(asked)
        keys, values = self._layers[layer]
        args = asked.numpy(), keys, values, seen.first_run, seen.runs, self._scale, out.numpy()
        running = (
            [self._others.submit(self._attend, *args, *share) for share in seen.shares[1:]] if self._others else []
        )
        self._attend(*args, *seen.shares[0])
        for one in running:
            one.result()
        return out.flatten(1).to(query.dtype)
