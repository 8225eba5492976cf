"""All scenes, see scenes_of_messages and scenes_of_losses."""

from collections.abc import Callable

from tests.sim.scenes_of_losses import (
    a_cut_is_made_by_the_relays_leave_only,
    a_dead_router_frees_its_workers,
    a_line_that_never_heals_ends_the_request,
    a_long_prompt_with_a_short_answer_is_cut,
    a_long_step_is_no_stall,
    a_paused_relay_goes_on_when_main_decode_does_not_come,
    a_request_that_a_worker_gave_up_is_lost_at_once,
    a_stranger_writes_nothing,
    kv_of_an_ended_epoch_is_found_again,
    main_decode_may_die_with_the_pen_that_only_a_beat_told_of,
    the_token_of_a_long_step_comes_after_the_yield,
    two_seconds_without_beats_cost_nothing,
)
from tests.sim.scenes_of_messages import (
    a_chunk_that_came_damaged_is_had_again,
    a_late_command_of_an_older_epoch_starts_nothing,
    a_lost_command_is_repeated,
    a_lost_main_ready_is_repeated_while_the_relay_is_paused,
    a_lost_ticket_is_repeated,
    a_lost_yield_is_repeated,
    a_lost_yield_is_repeated_by_the_relay,
    a_ticket_of_a_former_life_is_void,
    a_yield_that_only_the_router_heard_reaches_main_decode,
    an_answered_yield_is_not_repeated,
    chunks_of_an_older_epoch_land_nowhere,
    late_outputs_of_an_older_epoch_reach_nobody,
    the_last_frame_is_asked_for,
    whoever_knows_is_asked,
)

Scenery = Callable[[], None]

SCENES: list[Scenery] = [
    a_lost_command_is_repeated,
    a_lost_ticket_is_repeated,
    a_lost_main_ready_is_repeated_while_the_relay_is_paused,
    a_lost_yield_is_repeated_by_the_relay,
    a_yield_that_only_the_router_heard_reaches_main_decode,
    a_lost_yield_is_repeated,
    an_answered_yield_is_not_repeated,
    the_last_frame_is_asked_for,
    whoever_knows_is_asked,
    late_outputs_of_an_older_epoch_reach_nobody,
    a_late_command_of_an_older_epoch_starts_nothing,
    a_ticket_of_a_former_life_is_void,
    chunks_of_an_older_epoch_land_nowhere,
    a_chunk_that_came_damaged_is_had_again,
    a_line_that_never_heals_ends_the_request,
    a_long_step_is_no_stall,
    a_request_that_a_worker_gave_up_is_lost_at_once,
    main_decode_may_die_with_the_pen_that_only_a_beat_told_of,
    two_seconds_without_beats_cost_nothing,
    a_dead_router_frees_its_workers,
    kv_of_an_ended_epoch_is_found_again,
    a_paused_relay_goes_on_when_main_decode_does_not_come,
    a_long_prompt_with_a_short_answer_is_cut,
    a_cut_is_made_by_the_relays_leave_only,
    a_stranger_writes_nothing,
    the_token_of_a_long_step_comes_after_the_yield,
]
