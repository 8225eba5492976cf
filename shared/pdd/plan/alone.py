"""The floor under every wait: each request of a run as if it were alone, with the same hits, idle workers and an endless line.

What is above it is queue and line, which a better system may shorten; below it no order and no route gets.
"""

from collections.abc import Iterator

from ..core.ids import Role
from ..core.schedule import slice_tokens
from ..sim.report.records import Record
from .fleet_parts import FleetPlan, WorkerPlan


def alone_s(record: Record, plan: FleetPlan) -> float:
    """Seconds to the second token: what was missing where the prompt was computed, then one step of MD."""
    role = Role.MAIN if record.route == "MD" else Role.PREFILL
    start = min(record.hit.get(role, 0), record.prompt - 1)
    step_s = plan.workers[Role.MAIN].cost.seconds_of(0, 0.0, 1, record.prompt)
    return sum(_steps(start, record.prompt, plan.workers[role], plan.grain)) + step_s


def _steps(start: int, stop: int, worker: WorkerPlan, grain: int) -> Iterator[float]:
    """Seconds of each step that computes tokens [start, stop), cut as the scheduler cuts them."""
    chunk = worker.limits.chunk_tokens * grain
    while start < stop:
        taken = slice_tokens(stop - start, chunk, chunk)
        yield worker.cost.seconds_of(taken, taken * (2 * start + taken + 1) / 2, 0, 0)
        start += taken
