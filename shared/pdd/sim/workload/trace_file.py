"""What all trace readers share: the part wanted, and how a bad line is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from ...core.errors import PddError

T = TypeVar("T")


class TraceError(PddError):
    """A trace that cannot be replayed; the message names file and line."""


class Window(msgspec.Struct, frozen=True):
    skip: int
    limit: int
    scale: float
    time_scale: float
    context_tokens: int
    seed: int

    def tokens(self, count: int) -> int:
        return max(1, round(count * self.scale))

    def of(self, found: Iterator[T]) -> Iterator[T]:
        """The sessions [skip, skip + limit)."""
        for i, one in enumerate(found):
            if self.limit and i >= self.skip + self.limit:
                return
            if i >= self.skip:
                yield one


def decoded(line: bytes | str, kind: type[T], path: Path, number: int) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{path}, line {number}: {error}") from error
