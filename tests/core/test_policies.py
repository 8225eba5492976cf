"""When RLD yields: each policy's question and answer, and that every policy comes to an end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.policies import POLICIES, Adaptive, CatchUp, OneShot, Progress

counts = st.integers(0, 5000)


def progress(backlog: int, *, reports: int = 1, fruitless: int = 0, load: float = 0.0) -> Progress:
    return Progress(100 + backlog, 100, reports, fruitless, load)


progresses = st.builds(Progress, counts, counts, st.integers(1, 80), counts, st.floats(0, 1), *[st.floats(0, 1e3)] * 3)


@given(progresses)
def test_one_shot_yields_at_once(asked: Progress) -> None:
    assert OneShot().due(asked)


@pytest.mark.parametrize(("backlog", "due"), [(0, True), (8, True), (9, False), (500, False)])
def test_catch_up_waits_until_the_backlog_is_small(backlog: int, due: bool) -> None:
    assert CatchUp().due(progress(backlog)) is due


def test_catch_up_yields_when_waiting_gains_nothing_more() -> None:
    assert not CatchUp().due(progress(100, fruitless=15)), "several requests share MD's slices: one report says little"
    assert CatchUp().due(progress(100, fruitless=16))


def test_main_decode_ahead_of_what_the_relay_knows_is_no_backlog() -> None:
    assert Progress(10, 12, 1, 0, 0.0).backlog == 0


def test_adaptive_takes_the_shortest_use_of_a_relay_under_pressure() -> None:
    assert not Adaptive().due(progress(100, load=0.5))
    assert Adaptive().due(progress(100, load=0.75))


def measured(backlog: int, load: float, *, extend_tokens_per_s: float = 300.0, rtt_s: float = 0.0) -> Progress:
    """RLD writes 20 tokens a second."""
    return Progress(100 + backlog, 100, 2, 0, load, 0.05, extend_tokens_per_s, rtt_s)


@pytest.mark.parametrize(("load", "longest"), [(0.0, 14), (0.375, 29), (0.6, 74)])
def test_adaptive_takes_a_longer_stall_the_fuller_the_relay_is(load: float, longest: int) -> None:
    """One step of RLD's is worth the place of an empty one; MD extends over 15 tokens in it."""
    assert Adaptive().due(measured(longest, load))
    assert not Adaptive().due(measured(longest + 2, load))


def test_adaptive_counts_nothing_that_is_on_its_way() -> None:
    """In a round trip of 0.5 s RLD writes 10 tokens more."""
    assert not Adaptive().due(measured(25, 0.0))
    assert Adaptive().due(measured(25, 0.0, rtt_s=0.5))


@given(progresses)
def test_adaptive_never_yields_later_than_catch_up(asked: Progress) -> None:
    assert Adaptive().due(asked) or not CatchUp().due(asked)


@pytest.mark.parametrize("name", POLICIES)
@given(backlogs=st.lists(counts, min_size=64, max_size=64))
def test_every_policy_yields_after_so_many_reports(name: str, backlogs: list[int]) -> None:
    """Whatever MD reports: a relay is never occupied for ever by a hand-over that does not come."""
    asked = [progress(backlog, reports=reports) for reports, backlog in enumerate(backlogs, 1)]
    assert any(map(POLICIES[name].due, asked))


@pytest.mark.parametrize("left", [0.0, 0.07, 0.5])
def test_catch_up_needs_few_rounds_where_main_decode_is_quick(left: float) -> None:
    """The published course: each round leaves a fraction of the backlog, 300 -> 20 -> 1.3."""
    backlogs = [int(300 * left**round) for round in range(8)]
    assert next(round for round, backlog in enumerate(backlogs) if CatchUp().due(progress(backlog))) <= 6
