"""ServeGen's per-client distributions (Apache-2.0): a folder or archive of chunk-N-trace.csv and chunk-N-dataset.json.

A trace row says for ten minutes of one client: start (s), requests/s, the gaps' coefficient of variation. A dataset gives, for six hours
from a start, how often each input and output length occurs. Requests are drawn from them; there are no prefixes in this data.
"""

import ast
import csv
import io
import json
import tarfile
from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge
from itertools import accumulate
from pathlib import Path
from random import Random

from .book import Book
from .session import OneTurn, Session, Turn
from .trace_file import TraceError, Window

ROW_S = 600.0
Lengths = tuple[list[int], list[float]]  # values, shares added up


def read(path: Path, window: Window, book: Book) -> Iterator[tuple[float | None, Session]]:
    clients = [_client(name, files, window) for name, files in sorted(_files(path).items())]
    drawn = merge(*clients, key=lambda one: one[0])
    first: float | None = None
    for number, (when, prompt, outputs) in window.of(enumerate(drawn, start=1)):
        first = when if first is None else first
        tokens = min(window.tokens(prompt), window.context_tokens)
        turn = Turn(book.passage(number, tokens), window.tokens(outputs))
        yield (when - first) * window.time_scale, OneTurn(f"g{number}", turn)


def _files(path: Path) -> dict[str, dict[str, str]]:
    """{client: {"trace": text, "dataset": text}}; TraceError where one of a pair is missing."""
    found: dict[str, dict[str, str]] = {}
    for name, text in _texts(path):
        client, _, kind = name.rpartition("-")
        found.setdefault(client, {})[kind.partition(".")[0]] = text
    if not found:
        raise TraceError(f"{path}: no chunk-N-trace.csv and chunk-N-dataset.json in it")
    for client, files in found.items():
        if missing := {"trace", "dataset"} - set(files):
            raise TraceError(f"{path}: {client} has no {' and no '.join(sorted(missing))}")
    return found


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    endings = ("-trace.csv", "-dataset.json")
    if path.is_dir():
        for file in sorted(path.rglob("chunk-*")):
            if file.name.endswith(endings):
                yield file.name, file.read_text()
        return
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and member.name.endswith(endings) and (inside := archive.extractfile(member)):
                    yield Path(member.name).name, inside.read().decode()
    except (OSError, tarfile.TarError, UnicodeDecodeError, EOFError) as error:
        raise TraceError(f"{path}: {error}") from error


def _client(name: str, files: dict[str, str], window: Window) -> Iterator[tuple[float, int, int]]:
    """(when, prompt, outputs) of one client, in order of time."""
    rng = Random(f"servegen {window.seed} {name}")
    lengths: dict[float, tuple[Lengths, Lengths]] = {}
    datasets = _datasets(name, files["dataset"])
    for number, row in enumerate(csv.reader(io.StringIO(files["trace"])), start=1):
        try:
            start, rate, cv = float(row[0]), float(row[1]), float(row[2] or 1)
        except (ValueError, IndexError) as error:
            raise TraceError(f"{name}-trace.csv, line {number}: {error}") from error
        since = max((begin for begin in datasets if begin <= start), default=None)
        if rate <= 0 or since is None:
            continue
        if since not in lengths:
            lengths[since] = (_lengths(name, datasets[since], "input"), _lengths(name, datasets[since], "output"))
        prompts, outputs = lengths[since]
        shape, at = 1 / max(cv, 0.05) ** 2, start
        while (at := at + rng.gammavariate(shape, 1 / (rate * shape))) < start + ROW_S:
            yield at, _draw(prompts, rng), _draw(outputs, rng)


def _datasets(name: str, text: str) -> dict[float, dict[str, str]]:
    try:
        return {float(start): data for start, data in json.loads(text).items() if data}
    except (ValueError, AttributeError) as error:
        raise TraceError(f"{name}-dataset.json: {error}") from error


def _lengths(name: str, data: dict[str, str], which: str) -> Lengths:
    try:
        shares = {
            int(value): float(share) for value, share in ast.literal_eval(data[f"{which}_tokens"]).items() if share > 0
        }
        return list(shares), list(accumulate(shares.values()))
    except (ValueError, SyntaxError, KeyError, AttributeError) as error:
        raise TraceError(f"{name}-dataset.json, {which}_tokens: {error}") from error


def _draw(lengths: Lengths, rng: Random) -> int:
    values, shares = lengths
    return max(1, values[min(bisect_right(shares, rng.random() * shares[-1]), len(values) - 1)])
