"""One sequence as its batch sees it: what it still has to compute, whether it may, and when it ends."""

from dataclasses import dataclass

from .pool import Lease
from .sampling import Finish
from .schedule import Due
from .steps import Sequence


@dataclass(slots=True, eq=False)
class Member:
    sequence: Sequence
    number: int  # order of arrival
    base: int  # ids at open: what P computes, or what is imported
    compute_last: bool
    context: int  # most ids with KV
    lease: Lease | None  # None while it has given every page up
    have: int = 0
    ready: bool = False  # may compute: the base's KV is here, or with compute_last the first Speak
    seated: bool = False  # has had pages for all its ids
    busy: bool = False  # part of the step or import under way
    ended: bool = False
    closed: bool = False
    announced: int = 0  # the most ids ever reported as computed

    @property
    def wants_token(self) -> bool:
        sequence = self.sequence
        paused = sequence.speak_stop is not None and sequence.outputs >= sequence.speak_stop
        return sequence.speaking and not self.ended and not paused

    @property
    def target(self) -> int:
        """The last id is computed only to sample from it: whoever speaks next needs that step anyhow."""
        return len(self.sequence.ids) if self.wants_token else len(self.sequence.ids) - 1

    @property
    def work(self) -> int:
        """Ids to compute as soon as there are pages. What is longer than the context will never be."""
        if not self.ready or self.ended or len(self.sequence.ids) > self.context:
            return 0
        return max(0, self.target - self.sequence.computed)

    @property
    def due(self) -> Due:
        return Due(self.sequence, self.target, self.wants_token)

    @property
    def mute(self) -> bool:
        """Would speak, but every id has its KV (all of them imported or cached): the last one must be computed once more."""
        sequence = self.sequence
        return self.ready and self.wants_token and sequence.computed == len(sequence.ids) <= self.context

    def take(self, lease: Lease) -> None:
        """Hold this lease, which covers what it matched and nothing more."""
        self.lease, self.sequence.pages = lease, lease.pages
        self.sequence.computed = lease.node.depth * len(lease.node.ids)

    def ending(self, token: int) -> Finish | None:
        """After `token` was appended. The stop token itself is the last output."""
        sampling = self.sequence.sampling
        if token in sampling.stop_token_ids:
            return Finish("stop", token)
        return Finish("length") if self.full else None

    @property
    def full(self) -> bool:
        sequence = self.sequence
        return sequence.outputs >= sequence.sampling.max_tokens or len(sequence.ids) > self.context


@dataclass(slots=True, eq=False)
class Import:
    """Staged KV of tokens [start, stop), waiting for pages or being written. `failure`: why it never will be."""

    member: Member
    start: int
    stop: int
    failure: str = ""

    @property
    def pages(self) -> list[int]:
        return self.member.sequence.pages
