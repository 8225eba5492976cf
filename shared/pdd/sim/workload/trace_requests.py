"""Traces of single requests with times: Mooncake (Apache-2.0; 512-token prefix blocks, global) and Azure (CC-BY-4.0; lengths alone)."""

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from .book import Book
from .session import OneTurn, Session, Turn
from .trace_file import TraceError, Window, decoded

MOONCAKE_BLOCK = 512
AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


class MooncakeLine(msgspec.Struct):
    timestamp: float  # milliseconds
    input_length: int
    output_length: int
    hash_ids: list[int]


def read_mooncake(path: Path, window: Window, book: Book) -> Iterator[tuple[float | None, Session]]:
    first: float | None = None
    for number, line in window.of(_mooncake_lines(path)):
        first = line.timestamp if first is None else first
        ids = _mooncake_ids(line, window, book)
        turn = Turn(ids, window.tokens(line.output_length))
        yield (line.timestamp - first) / 1000 * window.time_scale, OneTurn(f"m{number}", turn)


def _mooncake_lines(path: Path) -> Iterator[tuple[int, MooncakeLine]]:
    at = float("-inf")
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            line = decoded(raw, MooncakeLine, path, number)
            if line.input_length < 1 or line.output_length < 0:
                raise TraceError(f"{path}, line {number}: lengths must be positive")
            if line.timestamp < at:
                raise TraceError(f"{path}, line {number}: timestamps must not go back")
            at = line.timestamp
            yield number, line


def _mooncake_ids(line: MooncakeLine, window: Window, book: Book) -> tuple[int, ...]:
    size = window.tokens(MOONCAKE_BLOCK)
    wanted = min(window.tokens(line.input_length), window.context_tokens)
    ids: list[int] = []
    for block in line.hash_ids:
        ids.extend(book.passage(block, size))
        if len(ids) >= wanted:
            break
    if len(ids) < wanted:
        ids.extend(book.passage(line.hash_ids[-1] + 1 if line.hash_ids else 0, wanted - len(ids)))
    return tuple(ids[:wanted])


def read_azure(path: Path, window: Window, book: Book) -> Iterator[tuple[float | None, Session]]:
    first: datetime | None = None
    for number, (when, prompt, outputs) in window.of(_azure_rows(path)):
        first = first or when
        tokens = min(window.tokens(prompt), window.context_tokens)
        turn = Turn(book.passage(number, tokens), window.tokens(outputs))
        yield (when - first).total_seconds() * window.time_scale, OneTurn(f"a{number}", turn)


def _azure_rows(path: Path) -> Iterator[tuple[int, tuple[datetime, int, int]]]:
    with path.open(newline="") as lines:
        rows = csv.reader(lines)
        header = next(rows, [])
        if header != AZURE_COLUMNS:
            raise TraceError(f"{path}, line 1: columns {', '.join(AZURE_COLUMNS)} expected, found {', '.join(header)}")
        for number, row in enumerate(rows, start=2):
            try:
                when, prompt, outputs = row
                # 100-ns ticks: one digit more than Python reads.
                yield number, (datetime.fromisoformat(when[:26]), int(prompt), max(1, int(outputs)))
            except ValueError as error:
                raise TraceError(f"{path}, line {number}: {error}") from error
