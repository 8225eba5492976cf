"""Coding-agent conversations (kv-cache-tester, Apache-2.0), in the compact form: one conversation a line, 64-token prefix blocks.

A request names how many blocks it shares with the one before (`p`) and the blocks that follow (`r`: start, length, ...). A prompt
that goes on from the whole of the last one also carries its answer, as a chat history does; the rest is new. Sub-agents run
while the parent waits.
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from .book import Book
from .session import Session, Turn
from .trace_file import TraceError, Window, decoded

BLOCK = 64
NUMBERS = 1 << 24  # passages of one conversation


class Entry(msgspec.Struct):
    """A request, or with `requests` a sub-agent."""

    t: float = 0.0
    input: int = msgspec.field(name="in", default=0)
    output: int = msgspec.field(name="out", default=0)
    think_time: float = 0.0
    p: int = 0
    r: list[int] = []
    requests: list["Entry"] | None = None
    duration_ms: float = 0.0


class Conversation(msgspec.Struct):
    id: str
    requests: list[Entry]


def read(path: Path, window: Window, book: Book) -> Iterator[tuple[float | None, Session]]:
    for number, conversation in window.of(enumerate(_conversations(path), start=1)):
        yield None, AgenticSession(conversation.id, number * NUMBERS, conversation.requests, window, book)


def _conversations(path: Path) -> Iterator[Conversation]:
    try:
        with gzip.open(path, "rb") as lines:
            if path.name.endswith(".json.gz"):
                yield _original(lines.read(), path)
                return
            for number, line in enumerate(lines, start=1):
                conversation = decoded(line, Conversation, path, number)
                if not any(entry.requests is None for entry in conversation.requests):
                    raise TraceError(f"{path}, line {number}: a conversation without requests")
                yield conversation
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"{path}: {error}") from error


def _original(text: bytes, path: Path) -> Conversation:
    """One conversation as published: whole `hash_ids` lists instead of what changed."""
    try:
        found = json.loads(text)
        _compact(found["requests"])
        return msgspec.convert(found, Conversation)
    except (ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
        raise TraceError(f"{path}: {error}") from error


def _compact(requests: list[dict[str, Any]]) -> None:
    last: list[int] = []
    for request in requests:
        if "requests" in request:
            _compact(request["requests"])
            continue
        blocks = request.pop("hash_ids")
        request["p"] = next(
            (i for i, (a, b) in enumerate(zip(last, blocks, strict=False)) if a != b), min(len(last), len(blocks))
        )
        last = blocks


class AgenticSession:
    """Replays one conversation, or one sub-agent of it."""

    def __init__(self, name: str, passages: int, entries: Sequence[Entry], window: Window, book: Book) -> None:
        self.name = name
        self.think_s = 0.0
        self._window, self._book, self._passages = window, book, passages
        self._entries = list(entries)
        self._at = 0
        self._last: tuple[int, ...] = ()
        self._waited_s = 0.0  # of children: the recorded think time contains it

    def next(self, answer: Sequence[int]) -> Turn | None:
        self._skip_leading_children()
        if self._at >= len(self._entries):
            return None
        entry, window = self._entries[self._at], self._window
        self._at += 1
        self.think_s = max(0.0, entry.think_time - self._waited_s) * window.time_scale
        wanted = min(window.tokens(entry.input), window.context_tokens)
        ids = self._kept(entry, answer)[:wanted]
        ids += self._words(wanted - len(ids))
        self._last = ids
        return Turn(ids, window.tokens(entry.output or 1), self._children())

    def _kept(self, entry: Entry, answer: Sequence[int]) -> tuple[int, ...]:
        """What this prompt has in common with the last, and the answer where it simply goes on."""
        shared = self._window.tokens(entry.p * BLOCK) if entry.p else 0
        if shared >= len(self._last) - self._window.tokens(BLOCK):
            return (*self._last, *answer)
        return self._last[:shared]

    def _children(self) -> tuple[Session, ...]:
        found: list[Session] = []
        self._waited_s = 0.0
        while self._at < len(self._entries) and (nested := self._entries[self._at].requests) is not None:
            self._waited_s = max(self._waited_s, self._entries[self._at].duration_ms / 1000)
            self._at += 1
            name = f"{self.name}.{self._at}"
            found.append(AgenticSession(name, self._new_number() * 4096, nested, self._window, self._book))
        return tuple(found)

    def _skip_leading_children(self) -> None:
        while self._at < len(self._entries) and self._entries[self._at].requests is not None:
            self._at += 1  # a sub-agent before any request of its parent: nobody to start it

    def _words(self, count: int) -> tuple[int, ...]:
        return self._book.passage(self._new_number(), count) if count > 0 else ()

    def _new_number(self) -> int:
        self._passages += 1
        return self._passages
