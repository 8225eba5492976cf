"""Every wait of the protocol, in seconds. None above 60 by default; each has a metric or a counted reason (docs/operations.md)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimeOuts:
    tick_s: float = 0.1  # how often a machine looks at what it waits for
    beat_s: float = 0.5
    suspect_s: float = 3.0  # T_s >= 3 beats + delay: a silent worker is lost
    lease_s: float = 9.0  # T_w >= 2 T_s + delay + skew: a worker gives up a request nobody renews
    retry_s: float = 0.5  # an unanswered command, Yield or Release is sent again
    ticket_s: float = 1.0  # a ticket is repeated while anything is missing
    kv_stall_s: float = 5.0  # nothing landed for so long: ask again for all that is missing; doubles each time
    lookup_s: float = 0.25  # the index did not answer: plan without hits
    stall_s: float = 5.0  # no progress: plan again; grows by STALL_GROWTH with each of the first four plans
    ask_gap_s: float = 0.3  # a gap in the indices is asked for
    ask_silence_s: float = 1.0  # so is silence: the lost frame may be the last
    relay_wait_s: float = 3.0  # RLD at its bound waits so long for MD, then finishes
    handover_wait_s: float = 30.0  # the same for a forced fence
    replan_s: float = 1.0  # nobody to plan with: try again after
    give_up_s: float = 45.0  # no token and no plan that works: the client gets an error
    tombstone_s: float = 60.0  # longer than any message lives

    def __post_init__(self) -> None:
        if self.suspect_s < 3 * self.beat_s:
            raise ValueError("suspect_s must be at least 3 beats")
        if self.lease_s < 2 * self.suspect_s:
            raise ValueError("lease_s must be at least 2 suspect_s")


STALL_GROWTH = 1.6
