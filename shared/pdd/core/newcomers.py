"""What a worker that has not measured yet is taken for: the average of its kind, and of its site's way to the others.

Where nobody has measured, routing's priors stand in. So who joins is neither flooded nor left out until its first steps are done.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from .messages import EngineLoad, LineState
from .routing import Candidate


def informed(kind: Sequence[Candidate]) -> list[Candidate]:
    """The same workers of one role, with what each has not measured filled in from the others."""
    rate = _mean(one.load.prefill_tokens_per_s for one in kind)
    step_s = _mean(one.load.step_s for one in kind)
    ways = _ways(kind)
    return [
        replace(one, load=_load(one.load, rate, step_s), lines=ways.get(one.peer.site, {}) | one.lines) for one in kind
    ]


def _load(load: EngineLoad, rate: float, step_s: float) -> EngineLoad:
    if load.prefill_tokens_per_s and load.step_s:
        return load
    known = {"prefill_tokens_per_s": load.prefill_tokens_per_s or rate, "step_s": load.step_s or step_s}
    return msgspec.structs.replace(load, **known)


def _ways(kind: Sequence[Candidate]) -> dict[str, dict[str, LineState]]:
    """From each site to each other, as those who have sent there see the line; what waits on it is each one's own."""
    found: dict[tuple[str, str], list[LineState]] = {}
    for one in kind:
        for line in one.lines.values():
            if line.bytes_per_s:
                found.setdefault((one.peer.site, line.site), []).append(line)
    ways: dict[str, dict[str, LineState]] = {}
    for (site, other), lines in found.items():
        seen = LineState(other, _mean(line.bytes_per_s for line in lines), _mean(line.rtt_s for line in lines), 0)
        ways.setdefault(site, {})[other] = seen
    return ways


def _mean(values: Iterable[float]) -> float:
    """Of those that were measured; 0: none was."""
    known = [value for value in values if value]
    return sum(known) / len(known) if known else 0.0
