"""What a storm's schedule is made of: actions at their time, and ambushes that wait for a request to reach a stage."""

from collections.abc import Callable
from dataclasses import dataclass

from ..core.ids import RequestId
from .stages import Stage

STORM_S = 20.0  # no fault lasts longer
Act = Callable[[], None]
ActOn = Callable[[RequestId], None]


@dataclass(frozen=True, slots=True)
class Timed:
    """One action of an entry. `kind` names the fault; "" for what only undoes one."""

    at: float
    kind: str
    act: Act


@dataclass(frozen=True, slots=True)
class Ambush:
    """Waits for the first request to reach a stage."""

    stage: Stage
    name: str
    kind: str
    act: ActOn
