"""What one contender is asked and what it answers: lines of JSON over a pipe, so that each runs alone in a process of its own.

Needs nothing but the standard library: a contender may live in another environment.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TextIO


@dataclass(frozen=True)
class Asked:
    """Write `outputs` greedy ids after each prompt, never ending early, with nothing cached from before."""

    prompts: list[list[int]]
    outputs: int


@dataclass(frozen=True)
class Took:
    """CPU-seconds are the process's, over all its threads: on a machine that others use they tell more than the wall's."""

    tokens: int  # prompt tokens where only one output was asked, else outputs after each one's first
    cpu_s: float
    wall_s: float
    ids: list[list[int]]


class Watch:
    """Times what happens between `start` and `stop`."""

    def start(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def stop(self) -> None:
        self.cpu_s, self.wall_s = time.process_time() - self._cpu, time.perf_counter() - self._wall

    def took(self, tokens: int, ids: list[list[int]]) -> Took:
        return Took(tokens, self.cpu_s, self.wall_s, ids)


def claim_stdout() -> TextIO:
    """The pipe to whoever asks; what anything in this process prints goes to stderr from now on."""
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return pipe


def answer_all(pipe: TextIO, perform: Callable[[Asked], Took]) -> None:
    """A line says that the contender is ready; then one for each that is asked, until stdin ends."""
    print(json.dumps("ready"), file=pipe, flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(perform(Asked(**json.loads(line))))), file=pipe, flush=True)
