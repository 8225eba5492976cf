"""The line's owner: who gets how much, by laws first and examples after; leases, silence, and what one line may learn."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.effects import Effect, Send
from pdd.core.ids import Peer, Role
from pdd.core.line_owner import AHEAD, FLOOR_S, FLOOR_SHARE, HORIZON_S, LEASE_S, SILENT_S, LineOwner, grants
from pdd.core.link import CHUNK_BYTES_MIN
from pdd.core.messages import WANTS_MAX, LineLease, LineWants, Waiting
from pdd.core.pace import BESIDE_SMALL, DRAINING, FIRST_S, FIRST_SMALL
from pdd.core.wanting import shortest

RATE = 50e6
P1, P2, P3 = (Peer("a", Role.PREFILL, f"p{number}", 1) for number in (1, 2, 3))
MB = 1_000_000


def wants(*bulk: Waiting, small: int = 0, rate: float = RATE, delivered: int = 0, site: str = "b") -> LineWants:
    return LineWants(site, rate, delivered, 0.0, small, bulk)


def waiting(
    remaining_mb: float, ready_mb: float | None = None, waited_s: float = 0.0, warm_up: bool = False
) -> Waiting:
    ready = remaining_mb if ready_mb is None else ready_mb
    return Waiting(int(remaining_mb * MB), int(ready * MB), waited_s, warm_up)


# -- grants -----------------------------------------------------------------------------------------------------------

transfers = st.builds(waiting, st.floats(0.1, 5000), st.floats(0, 5000), st.floats(0, 100), st.booleans())
fleets = st.lists(
    st.tuples(st.lists(transfers, max_size=WANTS_MAX), st.sampled_from([0, 0, 1 * MB])), min_size=1, max_size=6
)


@given(fleets)
def test_bulk_never_gets_more_than_the_line_may_have_and_nobody_who_waits_gets_nothing(
    fleet: list[tuple[list[Waiting], int]],
) -> None:
    wanted = {
        Peer("a", Role.PREFILL, f"p{number}", 1): wants(*bulk, small=small)
        for number, (bulk, small) in enumerate(fleet)
    }
    granted = grants(wanted, RATE)
    assert granted.keys() == wanted.keys()
    finite = [rate for peer, rate in granted.items() if wanted[peer].bulk]
    demand = sum(one.ready_bytes for want in wanted.values() for one in want.bulk) / HORIZON_S
    if any(math.isinf(rate) for rate in finite):
        assert len(finite) <= 1
    elif finite:
        assert min(finite) >= 0.999 * FLOOR_SHARE * BESIDE_SMALL * RATE / len(finite)
        budget = (BESIDE_SMALL if any(want.small_bytes for want in wanted.values()) else AHEAD) * RATE
        if demand >= budget:  # else what nobody needs is offered to each
            assert sum(finite) <= budget * 1.001


def test_a_sender_alone_may_take_the_whole_line() -> None:
    assert grants({P1: wants(waiting(500)), P2: wants()}, RATE)[P1] == math.inf


def test_nothing_is_leased_before_anything_is_known_of_the_line() -> None:
    assert set(grants({P1: wants(waiting(500)), P2: wants(waiting(5))}, 0.0).values()) == {math.inf}


def test_the_shortest_of_all_senders_gets_what_it_can_use() -> None:
    granted = grants({P1: wants(waiting(500)), P2: wants(waiting(60))}, RATE)
    assert granted[P2] > 0.9 * RATE and granted[P1] < 0.1 * RATE


def test_what_is_not_computed_yet_holds_no_line() -> None:
    granted = grants({P1: wants(waiting(500)), P2: wants(waiting(60, ready_mb=1))}, RATE)
    assert granted[P1] > 0.8 * RATE


def test_what_has_waited_long_comes_before_what_is_shorter() -> None:
    granted = grants({P1: wants(waiting(500, waited_s=60)), P2: wants(waiting(60))}, RATE)
    assert granted[P1] > 0.9 * RATE


def test_warm_up_comes_last_however_short() -> None:
    granted = grants({P1: wants(waiting(500)), P2: wants(waiting(5, waited_s=60, warm_up=True))}, RATE)
    assert granted[P1] > 0.9 * RATE


def test_anybodys_small_transfer_slows_everybodys_bulk() -> None:
    granted = grants({P1: wants(waiting(500)), P2: wants(small=MB)}, RATE)
    assert granted[P1] == pytest.approx(BESIDE_SMALL * RATE)


def test_who_has_no_bulk_is_held_to_nothing() -> None:
    assert grants({P1: wants(waiting(500)), P2: wants(small=MB), P3: wants()}, RATE)[P2] == math.inf


def test_a_sender_keeps_room_for_its_own_small_ones_by_itself() -> None:
    assert grants({P1: wants(waiting(500), small=MB)}, RATE)[P1] == math.inf


def test_more_transfers_than_a_message_holds_are_told_as_the_shortest_and_the_rest() -> None:
    told = shortest([waiting(number) for number in range(1, 40)])
    assert len(told) == WANTS_MAX
    assert sum(one.ready_bytes for one in told) == sum(range(1, 40)) * MB


# -- leases -----------------------------------------------------------------------------------------------------------


def leases(effects: list[Effect]) -> dict[Peer, LineLease]:
    found = {}
    for effect in effects:
        if isinstance(effect, Send):
            assert isinstance(effect.message, LineLease)
            found[effect.to] = effect.message
    return found


def test_whoever_asks_is_answered_and_others_hear_what_changes_for_them() -> None:
    owner = LineOwner()
    first = leases(owner.handle(P1, wants(waiting(500)), 0.0))
    assert first == {P1: LineLease("b", 0, 0, LEASE_S)}
    second = leases(owner.handle(P2, wants(waiting(60)), 0.1))
    assert second.keys() == {P1, P2}
    assert second[P1].bytes_per_s < 0.1 * RATE and second[P1].share_bytes_per_s == RATE / 2
    assert leases(owner.handle(P2, wants(waiting(59)), 0.2)).keys() == {P2}
    third = leases(owner.handle(P2, wants(), 0.3))
    assert third[P1] == LineLease("b", 0, 0, LEASE_S)


def test_bulk_makes_most_room_at_the_first_small_transfer_and_takes_the_line_again_after_the_last() -> None:
    owner = LineOwner()
    owner.handle(P1, wants(waiting(500)), 0.0)
    assert leases(owner.handle(P2, wants(small=MB), 0.1))[P1].bytes_per_s == FIRST_SMALL * RATE
    assert leases(owner.handle(P1, wants(waiting(480)), 0.2 + FIRST_S))[P1].bytes_per_s == BESIDE_SMALL * RATE
    assert leases(owner.handle(P2, wants(), 0.3 + FIRST_S))[P1].bytes_per_s == 0
    assert leases(owner.handle(P2, wants(small=MB), 9.0))[P1].bytes_per_s == FIRST_SMALL * RATE


def test_a_sender_that_went_silent_leaves_its_part_to_the_others() -> None:
    owner = LineOwner()
    owner.handle(P1, wants(waiting(500)), 0.0)
    owner.handle(P2, wants(waiting(60)), 0.0)
    owner.handle(P1, wants(waiting(500)), SILENT_S)
    assert owner.tick(SILENT_S) == []
    assert leases(owner.tick(SILENT_S + 0.1)) == {P1: LineLease("b", 0, 0, LEASE_S)}


def test_lines_to_different_sites_have_nothing_to_do_with_each_other() -> None:
    owner = LineOwner()
    owner.handle(P1, wants(waiting(500)), 0.0)
    assert leases(owner.handle(P2, wants(waiting(60), site="c"), 0.0)) == {P2: LineLease("c", 0, 0, LEASE_S)}


def test_two_senders_together_show_a_line_that_is_wider_than_each_of_them_saw() -> None:
    owner = LineOwner()
    for step in range(1, 100):
        for peer in (P1, P2):
            asked = wants(waiting(5000), rate=20e6, delivered=int(2.4e6 * step))
            owner.handle(peer, asked, 0.1 * step)
    assert owner.lines["a", "b"].bytes_per_s() == pytest.approx(48e6, rel=0.1)


def test_a_line_that_was_measured_too_low_is_found_out_under_leases() -> None:
    """Two that began together each saw half of it."""
    owner, line, moved = LineOwner(), 48e6, {P1: 0.0, P2: 0.0}
    rates = {P1: line / 2, P2: line / 2}
    for step in range(1, 200):
        for peer in (P1, P2):
            moved[peer] += 0.1 * rates[peer]
            asked = wants(waiting(5000), rate=line / 2, delivered=int(moved[peer]))
            for to, lease in leases(owner.handle(peer, asked, step * 0.1)).items():
                rates[to] = lease.bytes_per_s or line / 2
        total = sum(rates.values())
        rates = {peer: rate * min(1.0, line / total) for peer, rate in rates.items()}
    assert owner.lines["a", "b"].bytes_per_s() == pytest.approx(line, rel=0.05)


def test_a_queue_that_got_long_is_drained_by_all() -> None:
    long = LineWants("b", RATE, 0, 0.05, 0, (waiting(500),))
    assert sum(grants({P1: long, P2: wants(waiting(60))}, RATE).values()) == pytest.approx(DRAINING * RATE)


def test_on_a_slow_line_a_chunk_of_each_gets_through_every_few_seconds() -> None:
    granted = grants({P1: wants(waiting(500)), P2: wants(waiting(60))}, 200e3)
    assert granted[P1] * FLOOR_S >= CHUNK_BYTES_MIN


def test_an_owner_that_is_asked_nothing_keeps_nothing_waiting() -> None:
    owner = LineOwner()
    owner.handle(P3, wants(waiting(1), rate=0.0), 0.0)
    owner.tick(10.0)
    assert owner.tick(20.0) == [] and not owner.lines
