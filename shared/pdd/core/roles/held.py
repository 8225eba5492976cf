"""One request at one worker, and the two events a StepDone is split into for it."""

from dataclasses import dataclass, field
from enum import Enum

from ..events import Event
from ..ids import Epoch, Key, Peer, RequestId
from ..messages import Assignment, Written
from ..sampling import Finish, TokenLogprobs


@dataclass(frozen=True, slots=True)
class Computed(Event):
    """One request's part of a StepDone: ids before `upto` have KV."""

    upto: int
    started_at: float = 0.0  # the step


@dataclass(frozen=True, slots=True)
class Wrote(Event):
    """One request's part of a StepDone."""

    written: Written


@dataclass(slots=True)
class Held:
    """One request at one worker, in one epoch."""

    command: Assignment
    router: Peer
    phase: Enum
    opened_at: float
    renewed_at: float
    accepted: bool = False
    have: int = 0
    computed: int = 0
    whole: bool = False
    fence: int | None = None
    out: list[int] = field(default_factory=list)  # every output known here, from index 0
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    finish: Finish | None = None
    own_start: int | None = None  # first output written here
    progress: int = 0
    sent_at: dict[str, float] = field(default_factory=dict)  # what was last sent when, for repeats
    phase_at: float = 0.0

    @property
    def request(self) -> RequestId:
        return self.command.request

    @property
    def epoch(self) -> Epoch:
        return self.command.epoch

    @property
    def key(self) -> Key:
        return Key(self.command.request, self.command.epoch)

    @property
    def base(self) -> int:
        return self.command.base

    def outputs(self, start: int, stop: int) -> Written:
        """Known outputs [start, stop) as one piece, with `finish` if the last is among them."""
        ids = tuple(self.out[start:stop])
        logprobs = tuple(self.logprobs[i] for i in range(start, start + len(ids)) if i in self.logprobs)
        ended = self.finish if self.finish and start + len(ids) == len(self.out) else None
        return Written(self.request, self.epoch, start, ids, logprobs if len(logprobs) == len(ids) else (), ended)

    def learn(self, written: Written) -> None:
        """Append what continues the known outputs; what is already known is skipped."""
        skip = len(self.out) - written.start
        if skip < 0 or skip > len(written.ids) or (skip == len(written.ids) and not written.finish):
            return
        for offset, value in enumerate(written.logprobs[skip:], start=len(self.out)):
            self.logprobs[offset] = value
        self.out.extend(written.ids[skip:])
        self.finish = written.finish or self.finish
