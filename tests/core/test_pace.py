"""Capacity and pace: our own pace is never taken for the line's, small transfers and long queues slow bulk, leases bound it."""

import math

import pytest

from pdd.core.capacity import KEPT, STRETCH_S, Capacity
from pdd.core.link import LinkEstimator
from pdd.core.pace import (
    BESIDE_SMALL,
    DRAINING,
    FIRST_S,
    FIRST_SMALL,
    PROBE_EVERY_S,
    PROBE_S,
    SHARE_S,
    Pace,
)


def feed(capacity: Capacity, rate: float, seconds: float, step: float = 0.05) -> None:
    for _ in range(round(seconds / step)):
        capacity.carried(int(rate * step), step)


def pace_on(rate: float) -> Pace:
    """On a line whose capacity is measured, with bulk that waits."""
    pace = Pace(LinkEstimator("b"))
    pace.link.on_offered(100_000_000)
    pace.link.on_round_trip(0.05)
    feed(pace.link.capacity, rate, 3 * STRETCH_S)
    return pace


# -- capacity ---------------------------------------------------------------------------------------------------------


def test_a_busy_line_shows_its_capacity() -> None:
    capacity = Capacity()
    assert capacity.bytes_per_s == 0
    feed(capacity, 5e6, 2.0)
    assert capacity.bytes_per_s == pytest.approx(5e6, rel=0.01)


def test_a_few_large_lumps_are_no_measure() -> None:
    capacity = Capacity()
    capacity.carried(1_000_000, 0.01)  # it had been on its way for long, and was counted at once
    feed(capacity, 1e5, 10 * STRETCH_S)
    assert capacity.bytes_per_s == 0
    feed(capacity, 1e6, 20 * STRETCH_S)
    assert capacity.bytes_per_s == pytest.approx(1e6, rel=0.01)


def test_a_line_that_is_known_only_under_a_pace_is_not_known() -> None:
    capacity = Capacity()
    capacity.paced_at = 1e6
    feed(capacity, 1e6, 3 * STRETCH_S)
    assert capacity.bytes_per_s == 0


def test_our_own_pace_never_lowers_the_capacity_however_long_it_lasts() -> None:
    capacity = Capacity()
    feed(capacity, 5e6, 2.0)
    for _ in range(10):
        capacity.paced_at = 0.8 * capacity.bytes_per_s
        feed(capacity, capacity.paced_at, KEPT * STRETCH_S)
    assert capacity.bytes_per_s == pytest.approx(5e6, rel=0.01)


@pytest.mark.parametrize("paced_at", [math.inf, 4e6])
def test_a_line_that_became_slower_than_our_pace_is_noticed(paced_at: float) -> None:
    capacity = Capacity()
    feed(capacity, 5e6, 2.0)
    capacity.paced_at = paced_at
    feed(capacity, 1e6, (KEPT + 2) * STRETCH_S)
    assert capacity.bytes_per_s == pytest.approx(1e6, rel=0.05)


def test_a_line_that_became_faster_is_noticed_at_once() -> None:
    capacity = Capacity()
    feed(capacity, 5e6, 2.0)
    feed(capacity, 9e6, 3 * STRETCH_S)
    assert capacity.bytes_per_s == pytest.approx(9e6, rel=0.05)


# -- pace -------------------------------------------------------------------------------------------------------------


def test_alone_bulk_takes_the_whole_line() -> None:
    assert pace_on(5e6).limit(10.0) == math.inf


def test_nothing_is_paced_before_anything_is_measured() -> None:
    pace = Pace(LinkEstimator("b"))
    pace.link.on_offered(1000, small=True)
    assert pace.limit(0.0) == math.inf


def test_while_something_small_waits_bulk_leaves_it_room() -> None:
    pace = pace_on(5e6)
    pace.limit(10.0)
    pace.link.on_offered(1000, small=True)
    assert pace.limit(10.0) == pytest.approx(FIRST_SMALL * 5e6, rel=0.01)
    assert pace.limit(10.1 + FIRST_S) == pytest.approx(BESIDE_SMALL * 5e6, rel=0.01)
    pace.link.on_withdrawn(1000, small=True)
    assert pace.limit(10.2 + FIRST_S) == math.inf


def test_where_no_bulk_waits_small_ones_may_use_its_connections_as_fast_as_the_line_allows() -> None:
    pace = pace_on(5e6)
    pace.lease(2e6, 1e6, until=20.0)
    pace.link.on_withdrawn(100_000_000)
    pace.link.on_offered(1000, small=True)
    assert pace.limit(10.0) == math.inf
    pace.link.on_offered(100_000_000)
    assert pace.limit(10.1) == 2e6


def test_a_long_queue_is_drained_until_it_is_short() -> None:
    pace, link = (made := pace_on(5e6)), made.link
    pace.limit(10.0)
    link.on_loaded_round_trip(0.05 + 0.03, 10.0)
    assert pace.limit(10.0) == pytest.approx(DRAINING * 5e6, rel=0.01)
    link.on_loaded_round_trip(0.05 + 0.015, 10.1)
    assert pace.limit(10.1) < math.inf
    link.on_loaded_round_trip(0.05 + 0.005, 10.2)
    assert pace.limit(10.2) == math.inf


def test_whoever_is_paced_for_long_looks_now_and_then_whether_there_is_more() -> None:
    pace = pace_on(5e6)
    pace.limit(10.0)
    pace.link.on_offered(1000, small=True)
    seen = [pace.limit(10.0 + step * 0.1) == math.inf for step in range(1, 200)]
    share = sum(seen) / len(seen)
    assert share == pytest.approx(PROBE_S / (PROBE_EVERY_S + PROBE_S), abs=0.04)
    assert not any(seen[: int(PROBE_EVERY_S * 10) - 1])


def test_a_lease_bounds_bulk_then_an_equal_share_then_nothing() -> None:
    pace = pace_on(5e6)
    pace.lease(2e6, 1e6, until=20.0)
    assert [pace.limit(at) for at in (19.9, 20.1, 20.1 + SHARE_S)] == [2e6, 1e6, math.inf]


def test_bulk_leaves_no_faster_than_the_limit() -> None:
    pace, now, left = pace_on(5e6), 0.0, 0
    pace.lease(1e6, 1e6, until=100.0)
    while now < 10.0:
        if not pace.opens_in_s(now):
            pace.sent(100_000, now)
            left += 100_000
        now += 0.01
    assert left == pytest.approx(1e7, rel=0.03)


def test_a_pace_that_rises_shortens_what_a_slower_one_made_wait() -> None:
    pace = pace_on(5e6)
    pace.lease(1e4, 1e4, until=100.0)
    pace.sent(100_000, 0.0)
    assert pace.opens_in_s(1.0) == pytest.approx(9.0)
    pace.lease(1e6, 1e6, until=100.0)
    assert pace.opens_in_s(1.0) == pytest.approx(0.09)
    pace.lease(math.inf, math.inf, until=100.0)
    assert pace.opens_in_s(1.0) == 0
