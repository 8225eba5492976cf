"""The protocol's rules, turned off one at a time. Each must be missed: by a law in some storm, or by a scene that needs just this rule.

`MUTATIONS` follows the list of the issue; `SWITCHES` the switches of the executable model that the rules were found with.
"""

from collections.abc import Callable
from dataclasses import dataclass

from pdd.adapters import staging
from pdd.core import messages as msg
from pdd.core import pool
from pdd.core.roles import casting, cuts, receiver, watching
from pdd.core.roles.course import Course
from pdd.core.roles.held import Wrote
from pdd.core.roles.main_decode import MainDecode
from pdd.core.roles.prefill import Prefill
from pdd.core.roles.relay_decode import RelayDecode
from pdd.core.roles.relaying import Pen, Relay
from pdd.core.roles.router import Router
from pdd.core.roles.worker import Worker
from pdd.core.singular import Singular
from tests.sim import scenes
from tests.sim.patches import (
    ByName,
    Patch,
    any_epoch,
    any_sender,
    back_to_older,
    both,
    close_at_yield,
    counted_from_base,
    cut_at_once,
    deaf_to_lives,
    forget_at_end,
    forgotten_pin,
    instead,
    keep_buffer,
    kv_of_any_epoch,
    learn_late,
    method,
    never_at_router,
    never_at_worker,
    no_end_of_pause,
    no_repeated_yield,
    no_second_report,
    no_stall,
    nothing,
    only_gaps,
    only_the_pen,
    pen_from_messages,
    relay_for_strangers,
    renewed_for_ever,
    row,
    short_lease,
    speak_when_whole,
    taken_twice,
    tickets_of_any_life,
    without_epoch,
    yield_anew,
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """`laws`: the names of laws that notice it. `seeds`: storms that are known to; others are tried if they no longer do."""

    patch: Patch
    laws: tuple[str, ...]
    seeds: tuple[int, ...] = ()
    scene: Callable[[], None] | None = None


NO_YIELD_REPEATS = both(
    instead(Relay, "work_relay", no_repeated_yield), nothing(Relay, "main_still_ready"), never_at_router("yield")
)

MUTATIONS: dict[str, Mutation] = {
    "skip the epoch check on tokens": Mutation(
        instead(Router, "_current", any_epoch),
        ("its own epoch",),
        scene=scenes.late_outputs_of_an_older_epoch_reach_nobody,
    ),
    "skip the epoch check on KV": Mutation(
        both(
            lambda patching: patching.setattr(receiver, "TransferId", without_epoch),
            instead(staging.Staging, "admit", kv_of_any_epoch),
            instead(staging.Staging, "claim", kv_of_any_epoch),
        ),
        ("KV of its epoch",),
        scene=scenes.chunks_of_an_older_epoch_land_nowhere,
    ),
    "speak at the fence": Mutation(
        both(row(RelayDecode, Pen.YIELDED, Wrote, "relay_wrote"), row(Prefill, Pen.YIELDED, Wrote, "relay_wrote")),
        ("fence",),
        scene=scenes.the_token_of_a_long_step_comes_after_the_yield,
    ),
    "yield twice with different fences": Mutation(
        both(
            method(Relay, "learn_late", learn_late),
            row(RelayDecode, Pen.YIELDED, Wrote, "learn_late"),
            row(Prefill, Pen.YIELDED, Wrote, "learn_late"),
            method(Relay, "main_still_ready", yield_anew),
        ),
        ("one fence",),
        seeds=(10,),
    ),
    "forget the pin": Mutation(
        both(instead(pool.Pool, "_descend", forgotten_pin), nothing(pool.Pool, "_unpin")),
        ("the same ids", "AssertionError", "KeyError", "IllegalEvent"),
        seeds=(5, 6),
    ),
    "free KV at yield": Mutation(instead(Relay, "_yield", close_at_yield), ("KV is kept",)),
    "accept a ticket of a former incarnation": Mutation(
        both(
            instead(Prefill, "receivers", lambda original: lambda self, held: ByName(original(self, held))),
            instead(Worker, "_peer", tickets_of_any_life),
        ),
        ("KV to the cast",),
        scene=scenes.a_ticket_of_a_former_life_is_void,
    ),
    "do not repeat a lost yield": Mutation(NO_YIELD_REPEATS, ("bounded wait",), scene=scenes.a_lost_yield_is_repeated),
    "take an index twice": Mutation(instead(Course, "take", taken_twice), ("its own epoch",)),
    "ignore a lease": Mutation(
        instead(Worker, "_tick", renewed_for_ever), ("given back",), scene=scenes.a_dead_router_frees_its_workers
    ),
    "never cut": Mutation(
        both(nothing(cuts.Cuts, "wanted", False), nothing(Singular, "why_not", "never")),
        ("singular",),
        scene=scenes.a_long_prompt_with_a_short_answer_is_cut,
    ),
    "cut without the guard": Mutation(nothing(Singular, "why_not"), ("the guard",), seeds=(10, 19)),
    "speak before the yield": Mutation(method(MainDecode, "filled", speak_when_whole), ("fence", "one writer")),
}

SWITCHES: dict[str, Mutation] = {
    "inc": Mutation(instead(Worker, "_hear", deaf_to_lives), ("in the cast",), seeds=(7, 13)),
    "cmdrep": Mutation(never_at_router("command"), ("bounded wait",), scene=scenes.a_lost_command_is_repeated),
    "ticketrep": Mutation(never_at_worker("ticket"), ("bounded wait",), scene=scenes.a_lost_ticket_is_repeated),
    "mrrep": Mutation(
        instead(MainDecode, "work", no_second_report),
        ("bounded wait",),
        scene=scenes.a_lost_main_ready_is_repeated_while_the_relay_is_paused,
    ),
    "yieldrep": Mutation(
        instead(Relay, "work_relay", no_repeated_yield),
        ("bounded wait",),
        scene=scenes.a_lost_yield_is_repeated_by_the_relay,
    ),
    "routeryield": Mutation(
        never_at_router("yield"), ("bounded wait",), scene=scenes.a_yield_that_only_the_router_heard_reaches_main_decode
    ),
    "taken": Mutation(
        nothing(MainDecode, "_take"), ("answered is answered",), scene=scenes.an_answered_yield_is_not_repeated
    ),
    "tail": Mutation(
        instead(Router, "_repeat", only_gaps), ("bounded wait",), scene=scenes.the_last_frame_is_asked_for
    ),
    "askall": Mutation(
        instead(Router, "_repeat", only_the_pen), ("bounded wait",), scene=scenes.whoever_knows_is_asked
    ),
    "stall": Mutation(
        instead(Router, "_watch", no_stall),
        ("every wait ends",),
        scene=scenes.a_line_that_never_heals_ends_the_request,
    ),
    "backoff": Mutation(
        lambda patching: patching.setattr(watching, "STALL_GROWTH", 1.0),
        ("the same ids",),
        scene=scenes.a_long_step_is_no_stall,
    ),
    "keepids": Mutation(
        instead(MainDecode, "wrote", forget_at_end), ("needless plan",), scene=scenes.the_last_frame_is_asked_for
    ),
    "epochmem": Mutation(
        instead(Worker, "_assign", back_to_older),
        ("epochs rise", "needless plan"),
        scene=scenes.a_late_command_of_an_older_epoch_starts_nothing,
    ),
    "cutpen": Mutation(instead(Router, "_consider_cut", cut_at_once), ("who parts",)),
    "eosfin": Mutation(
        both(
            method(Relay, "yield_anew", yield_anew),
            row(RelayDecode, Pen.FINISHED, msg.MainReady, "yield_anew"),
            row(Prefill, Pen.FINISHED, msg.MainReady, "yield_anew"),
        ),
        ("the end",),
        seeds=(6, 17),
    ),
    "bufdrop": Mutation(instead(Router, "_raise_epoch", keep_buffer), ("its own epoch",), seeds=(20, 31)),
    "absidx": Mutation(instead(casting, "command", counted_from_base), ("its own epoch", "the same ids", "one writer")),
    "pauseyield": Mutation(
        instead(Relay, "work_relay", no_end_of_pause),
        ("bounded wait", "needless plan"),
        scene=scenes.a_paused_relay_goes_on_when_main_decode_does_not_come,
    ),
    "leaseorder": Mutation(
        instead(Worker, "_tick", short_lease), ("needless plan",), scene=scenes.two_seconds_without_beats_cost_nothing
    ),
    "beatlist": Mutation(
        nothing(Router, "_missing"),
        ("bounded wait",),
        scene=scenes.a_request_that_a_worker_gave_up_is_lost_at_once,
    ),
    "castcheck": Mutation(
        both(instead(Router, "_current", any_sender), instead(Course, "speaker", relay_for_strangers)),
        ("its own epoch",),
        scene=scenes.a_stranger_writes_nothing,
    ),
    "relabel": Mutation(
        nothing(pool.Pool, "deepen"), ("found again",), scene=scenes.kv_of_an_ended_epoch_is_found_again
    ),
    "tomb": Mutation(nothing(Worker, "_bury"), ("ended is ended",), seeds=(4, 12)),
    "beatpen": Mutation(
        instead(Router, "_held", pen_from_messages),
        ("bounded wait",),
        scene=scenes.main_decode_may_die_with_the_pen_that_only_a_beat_told_of,
    ),
}
