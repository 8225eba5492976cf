"""What one engine step is: plain data between `batch` (which composes steps) and a runner (which computes them)."""

from dataclasses import dataclass, field
from typing import NamedTuple

from .ids import Key
from .sampling import Sampling, TokenLogprobs


@dataclass(slots=True, eq=False)
class Sequence:
    """One request's life in one engine. `ids` are the prompt and all outputs known here; the first `computed` have KV in `pages`.

    `pages` only grows while the sequence is open, so a runner may read it during a step.
    """

    key: Key
    ids: list[int]
    prompt_len: int
    sampling: Sampling
    cache_salt: str = ""
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    speaking: bool = False
    speak_stop: int | None = None  # output index before which to pause

    @property
    def outputs(self) -> int:
        return len(self.ids) - self.prompt_len


@dataclass(frozen=True, slots=True)
class Slice:
    """Compute the KV of ids [start, stop) of one sequence; `sample`: then draw output index `stop - prompt_len`."""

    sequence: Sequence
    start: int
    stop: int
    sample: bool


@dataclass(frozen=True, slots=True)
class StepPlan:
    slices: tuple[Slice, ...]


class Sampled(NamedTuple):
    token: int
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """`sampled` has one entry for each slice that asked, in the plan's order. `seconds`: what the step cost."""

    sampled: tuple[Sampled, ...]
    seconds: float
