"""Public request traces, by path: each becomes sessions with the trace's lengths, times and prefix structure, in ids of our own.

What cannot be read is told with file and line, before anything is sent.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from . import trace_agentic, trace_requests, trace_servegen
from .book import Book
from .session import Session
from .trace_file import TraceError, Window

__all__ = ["Timed", "TraceError", "TraceLoad", "Window", "trace_sessions"]

Timed = tuple[float | None, Session]  # when it begins, in seconds from the trace's start; None: the trace does not say

Reader = Callable[[Path, Window, Book], Iterator[Timed]]

FORMATS: dict[str, Reader] = {
    "agentic": trace_agentic.read,
    "mooncake": trace_requests.read_mooncake,
    "azure": trace_requests.read_azure,
    "servegen": trace_servegen.read,
}


class TraceLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`scale` multiplies lengths, `time_scale` gaps and think time, so that a small model can follow a large one's traffic."""

    path: str
    format: str = ""  # one of FORMATS; empty: by the file's name and first line
    scale: float = 1.0
    time_scale: float = 1.0
    skip: int = 0
    limit: int = 0  # sessions; 0: all
    context_tokens: int = 1 << 20  # longer requests are cut to their last turns' room: the tail is dropped

    def __post_init__(self) -> None:
        if self.format and self.format not in FORMATS:
            raise ValueError(f"trace.format: one of {', '.join(FORMATS)}, not {self.format!r}")
        if self.scale <= 0 or self.time_scale < 0:
            raise ValueError("trace.scale must be above 0, trace.time_scale not negative")


def trace_sessions(load: TraceLoad, base: Path, book: Book, seed: int) -> Iterator[Timed]:
    """In the trace's order. `base`: what a relative path starts from."""
    path = (base / load.path).resolve()
    if not path.exists():
        raise TraceError(f"{path}: no such trace")
    window = Window(load.skip, load.limit, load.scale, load.time_scale, load.context_tokens, seed)
    return FORMATS[load.format or _format_of(path)](path, window, book)


def _format_of(path: Path) -> str:
    name = path.name
    if path.is_dir() or name.endswith((".tar.xz", ".tar.gz")):
        return "servegen"
    if name.endswith((".jsonl.gz", ".json.gz")):
        return "agentic"
    if name.endswith(".jsonl"):
        return "mooncake"
    if name.endswith(".csv"):
        return "azure"
    raise TraceError(f"{path}: which format? Say so in the scenario: one of {', '.join(FORMATS)}")
