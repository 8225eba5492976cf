"""The `[load]` table of a scenario: which sessions come, how many at once or when."""

from collections.abc import Iterator
from itertools import count, islice, repeat
from pathlib import Path
from random import Random

import msgspec

from .agent import AgentLoad, AgentSession
from .arrivals import arrivals
from .book import Book
from .hits import HitsLoad, history, hit_sessions, standing_sessions
from .session import Session
from .traces import TraceLoad, trace_sessions

STANDING_OVER_S = 5.0  # those under way at the beginning are not asked for all at once


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Exactly one of agent, hits and trace; closed loop with `at_once`, open loop with `rate_per_s`, or a trace's own times with neither.

    Nothing new begins after `duration_s` (0: no limit) or `sessions` (0: no limit). Requests that begin before `warmup_s` are not counted.
    An open loop of [load.hits] may begin with `standing_s` seconds' worth of requests under way, their prompts cached, so that
    decoding need not fill up first.
    """

    agent: AgentLoad | None = None
    hits: HitsLoad | None = None
    trace: TraceLoad | None = None
    at_once: int = 0
    rate_per_s: float = 0.0
    burst: float = 1.0
    sessions: int = 0
    duration_s: float = 0.0
    warmup_s: float = 0.0
    standing_s: float = 0.0
    max_tokens: int = 0  # asked for; 0: exactly what the session wants, which tells the router how long an answer gets
    lowest_id: int = 1000
    highest_id: int = 30_000

    def __post_init__(self) -> None:
        if sum(kind is not None for kind in (self.agent, self.hits, self.trace)) != 1:
            raise ValueError("load: exactly one of [load.agent], [load.hits] and [load.trace]")
        if self.at_once and self.rate_per_s:
            raise ValueError("load: at_once (closed loop) or rate_per_s (open loop), not both")
        if (
            min(
                self.at_once,
                self.rate_per_s,
                self.burst,
                self.sessions,
                self.duration_s,
                self.warmup_s,
                self.standing_s,
            )
            < 0
        ):
            raise ValueError("load: nothing here may be negative")
        if not (self.at_once or self.rate_per_s or self.trace):
            raise ValueError("load: at_once or rate_per_s is needed")
        if not (self.sessions or self.duration_s or self.trace):
            raise ValueError("load: sessions or duration_s is needed, or it would never end")

    @property
    def closed(self) -> bool:
        return self.at_once > 0

    def book(self, seed: int) -> Book:
        return Book(seed, self.lowest_id, self.highest_id)

    def preload(self, seed: int) -> tuple[int, ...]:
        """What caches must hold before the first request; empty: nothing."""
        return history(self.hits, self.book(seed)) if self.hits else ()

    def timed(self, seed: int, base: Path) -> Iterator[tuple[float, Session]]:
        """(start, session) in order of start; closed loops start all at 0 and let `at_once` of them run."""
        if self.hits and self.standing_s:
            count = round(self.rate_per_s * self.standing_s)
            standing = standing_sessions(self.hits, self.book(seed), seed, count)
            yield from ((STANDING_OVER_S * i / count, session) for i, session in enumerate(standing))
        found = self._sessions(seed, base)
        if self.sessions:
            found = islice(found, self.sessions)
        starts = arrivals(self.rate_per_s, self.burst, Random(f"arrivals {seed}")) if self.rate_per_s else repeat(None)
        for start, (recorded, session) in zip(starts, found, strict=False):
            when = start if start is not None else 0.0 if self.closed or recorded is None else recorded
            if self.duration_s and when >= self.duration_s:
                return
            yield when, session

    def _sessions(self, seed: int, base: Path) -> Iterator[tuple[float | None, Session]]:
        book = self.book(seed)
        if self.trace:
            yield from trace_sessions(self.trace, base, book, seed)
        elif self.hits:
            for session in hit_sessions(self.hits, book, seed):
                yield None, session
        elif self.agent:
            for number in count(1):
                yield None, AgentSession(f"s{number}", number, self.agent, book, seed)
