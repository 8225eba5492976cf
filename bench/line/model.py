"""The line as a queue: what each way of sharing it does to the same load. Fluid, in steps of a millisecond or two.

`ours` is the order of `pdd.core.order`, the same that the product's links and the line's owner use; small transfers go at once.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pdd.core.order import turn

from .load import LINE_BYTES_PER_S, Asked

STEP_S = 0.002
RTT_S = 0.05
SLICE_BYTES = 1 << 20  # stop-and-wait: one slice, then its answer
SMALL_S = 0.1


@dataclass(slots=True)
class Transfer:
    at: float
    size: float
    left: float


Share = Callable[[list[Transfer], float, float], None]  # (active, bytes of this step, now): takes from `left`


def processor_sharing(active: list[Transfer], budget: float, now: float) -> None:
    """All alike: as TCP streams would."""
    _evenly(active, budget, budget)


def stop_and_wait(active: list[Transfer], budget: float, now: float) -> None:
    """All alike, and none faster than a slice each round trip."""
    most = SLICE_BYTES / (RTT_S + SLICE_BYTES / LINE_BYTES_PER_S) * STEP_S
    _evenly(active, budget, most)


def shortest_first(active: list[Transfer], budget: float, now: float) -> None:
    _in_turn(sorted(active, key=lambda one: one.left), budget)


def ours(active: list[Transfer], budget: float, now: float) -> None:
    small = [one for one in active if one.size <= SMALL_S * LINE_BYTES_PER_S / 10]
    bulk = [one for one in active if one.size > SMALL_S * LINE_BYTES_PER_S / 10]
    small.sort(key=lambda one: one.left)
    bulk.sort(key=lambda one: turn(int(one.left), now - one.at, LINE_BYTES_PER_S, False))
    _in_turn(small + bulk, budget)


SHARES: dict[str, Share] = {
    "stop-and-wait": stop_and_wait,
    "processor sharing": processor_sharing,
    "shortest first": shortest_first,
    "ours (ageing)": ours,
}


def _in_turn(ordered: list[Transfer], budget: float) -> None:
    for one in ordered:
        if budget <= 0:
            return
        taken = min(one.left, budget)
        one.left -= taken
        budget -= taken


def _evenly(active: list[Transfer], budget: float, most: float) -> None:
    waiting = sorted(active, key=lambda one: one.left)
    while waiting and budget > 0:
        part = min(budget / len(waiting), most)
        first = waiting.pop(0)
        taken = min(first.left, part)
        first.left -= taken
        budget -= taken


def play(load: list[Asked], share: Share) -> list[float]:
    """Seconds of each transfer, sorted: from asking to the last byte's arrival."""
    waiting = list(reversed(load))
    active: list[Transfer] = []
    done: list[float] = []
    now, budget = 0.0, LINE_BYTES_PER_S * STEP_S
    while waiting or active:
        now += STEP_S
        while waiting and waiting[-1].at <= now:
            asked = waiting.pop()
            active.append(Transfer(asked.at, asked.size, asked.size))
        share(active, budget, now)
        if any(one.left <= 0 for one in active):
            done += [now - one.at + RTT_S / 2 for one in active if one.left <= 0]
            active = [one for one in active if one.left > 0]
        elif not active and waiting:
            now = max(now, waiting[-1].at - STEP_S)
    return sorted(done)
