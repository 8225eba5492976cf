"""One request as its router sees it: the epoch, the cast, the pen, and every output the client has."""

from dataclasses import dataclass, field
from enum import Enum, auto

from ..effects import RequestReport
from ..events import RequestSubmitted
from ..ids import BlockHash, Epoch, Peer, RequestId, Role
from ..messages import Cast, Written, Yield
from ..sampling import Finish, TokenLogprobs


class Phase(Enum):
    LOOKING = auto()  # asked the index
    RUNNING = auto()  # a cast is named
    WAITING = auto()  # nobody to plan with
    LEARNING = auto()  # the client was served by RLD; MD learns the prompt by a transfer or a warm-up


@dataclass(slots=True)
class Buffered:
    token: int
    logprobs: TokenLogprobs | None
    finish: Finish | None
    speaker: Role


@dataclass(slots=True)
class Course:
    asked: RequestSubmitted
    submitted_at: float
    phase: Phase = Phase.LOOKING
    epoch: Epoch = Epoch(0)
    cast: dict[Role, Peer] = field(default_factory=dict)
    named: Cast = field(default_factory=Cast)  # the cast as the epoch's commands name it
    base: int = 0
    out: list[int] = field(default_factory=list)
    waiting: dict[int, Buffered] = field(default_factory=dict)
    ending: tuple[int, Finish] | None = None  # an end after so many outputs that came without one of its own
    pen: Role = Role.PREFILL
    whole: dict[Role, None] = field(default_factory=dict)
    yielded: Yield | None = None
    main_spoke: bool = False
    warm_up: bool = False  # the epoch has no client
    delivered: bool = False  # P has told what the KV's way to MD was
    crosses_at: float = 0.0  # when the KV should be whole at MD
    rtt_s: float = 0.0  # to there
    cut: bool | None = None  # None: not asked; False: asked and not promised; True: promised
    cut_denied: bool = False
    acked: dict[Peer, int] = field(default_factory=dict)  # the worker's beat number when it accepted
    skip: dict[str, None] = field(default_factory=dict)  # refused us: not asked again in this plan
    blocks: list[BlockHash] = field(default_factory=list)  # of the prompt
    hits: dict[Peer, int] = field(default_factory=dict)  # as the index said
    marks: dict[Peer, int] = field(default_factory=dict)  # progress as last beaten
    assigned: list[tuple[Role, Peer, int]] = field(default_factory=list)  # and tokens to compute
    plans: int = 0
    planned_at: float = 0.0
    progress_at: float = 0.0
    spoken_at: float = 0.0  # last output delivered, or submission
    served_at: float = 0.0  # the same, but for the one output that P writes in each plan after the first
    sent_at: dict[str, float] = field(default_factory=dict)
    report: RequestReport = field(default_factory=RequestReport)

    def __post_init__(self) -> None:
        self.report.ids = self.out  # one list

    @property
    def request(self) -> RequestId:
        return self.asked.request

    @property
    def context(self) -> int:
        return len(self.asked.ids) + self.asked.sampling.max_tokens

    def role_of(self, peer: Peer) -> Role | None:
        return next((role for role, member in self.cast.items() if member == peer), None)

    @property
    def hosted(self) -> bool:
        """P is its own relay."""
        return Role.RELAY in self.cast and self.cast[Role.RELAY] == self.cast.get(Role.PREFILL)

    def speaker(self, sender: Peer, written: Written) -> Role | None:
        """Which role wrote this: a hosting P is the relay after token 0."""
        role = self.role_of(sender)
        return Role.RELAY if self.hosted and role is Role.PREFILL and written.stop > self.base + 1 else role

    def before(self, role: Role) -> Role:
        """Whose outputs `role` has when it repeats another's: so it has not spoken yet, and nobody before it may go."""
        return Role.RELAY if role is Role.MAIN and self.named.relay else Role.PREFILL

    def matters(self, role: Role) -> bool:
        """Would losing this member now cost the client anything?"""
        if role is Role.PREFILL and not self.hosted:
            first = Role.RELAY if Role.RELAY in self.cast else Role.MAIN
            return first not in self.whole and self.pen is not Role.MAIN
        if role is not Role.MAIN:
            return self.pen is not Role.MAIN
        return Role.RELAY not in self.cast or self.pen is Role.MAIN

    def take(self, written: Written, speaker: Role) -> None:
        """Buffer outputs; those known already are skipped."""
        if written.finish and not written.ids:
            self.ending = written.start, written.finish
        for offset, token in enumerate(written.ids):
            index = written.start + offset
            if index >= len(self.out) and index not in self.waiting:
                logprobs = written.logprobs[offset] if written.logprobs else None
                finish = written.finish if offset == len(written.ids) - 1 else None
                self.waiting[index] = Buffered(token, logprobs, finish, speaker)

    def next_in_order(self) -> tuple[Written, Role] | None:
        """The next run of outputs that one speaker wrote, moved from the buffer to `out`."""
        start = len(self.out)
        first = self.waiting.get(start)
        if first is None:
            return None
        ids: list[int] = []
        logprobs: list[TokenLogprobs] = []
        last = first
        while (entry := self.waiting.get(len(self.out))) and entry.speaker is first.speaker:
            del self.waiting[len(self.out)]
            last = entry
            ids.append(entry.token)
            self.out.append(entry.token)
            if entry.logprobs:
                logprobs.append(entry.logprobs)
        written = Written(self.request, self.epoch, start, tuple(ids), tuple(logprobs), last.finish)
        return written, first.speaker

    def spoke(self, speaker: Role, start: int, stop: int, at_s: float) -> None:
        report = self.report
        if report.spoke and report.spoke[-1][0] == speaker and report.spoke[-1][2] == start:
            report.spoke[-1] = (speaker.value, report.spoke[-1][1], stop)
        else:
            report.spoke.append((speaker.value, start, stop))
        report.token_at_s.extend([at_s] * (stop - start))
