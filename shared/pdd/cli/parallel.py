"""Simulations side by side, each in a process of its own, with one bar for all."""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

T = TypeVar("T")


def in_parallel(work: Mapping[str, Callable[[], T]], jobs: int, console: Console) -> Iterator[tuple[str, T]]:
    """(name, result) as they come. `jobs`: at once; 0: one for each core."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    workers = max(1, min(jobs or os.cpu_count() or 1, len(work)))
    with Progress(*columns, console=console, transient=True) as progress, ProcessPoolExecutor(workers) as pool:
        task = progress.add_task("simulating", total=len(work))
        running = {pool.submit(one): name for name, one in work.items()}
        for future in as_completed(running):
            progress.advance(task)
            yield running[future], future.result()
