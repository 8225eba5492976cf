"""When RLD yields: each policy's question and answer, and that every policy comes to an end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.policies import POLICIES, Adaptive, CatchUp, OneShot, Progress

counts = st.integers(0, 5000)


def progress(backlog: int, *, reports: int = 1, last: int = 1 << 30, load: float = 0.0) -> Progress:
    return Progress(100 + backlog, 100, reports, last, load)


progresses = st.builds(Progress, counts, counts, st.integers(1, 80), counts, st.floats(0, 1))


@given(progresses)
def test_one_shot_yields_at_once(asked: Progress) -> None:
    assert OneShot().due(asked)


@pytest.mark.parametrize(("backlog", "due"), [(0, True), (8, True), (9, False), (500, False)])
def test_catch_up_waits_until_the_backlog_is_small(backlog: int, due: bool) -> None:
    assert CatchUp().due(progress(backlog)) is due


def test_catch_up_yields_when_waiting_gains_nothing_more() -> None:
    assert not CatchUp().due(progress(100, last=101))
    assert CatchUp().due(progress(100, last=100))


def test_main_decode_ahead_of_what_the_relay_knows_is_no_backlog() -> None:
    assert Progress(10, 12, 1, 0, 0.0).backlog == 0


def test_adaptive_takes_the_shortest_use_of_a_relay_under_pressure() -> None:
    assert not Adaptive().due(progress(100, load=0.5))
    assert Adaptive().due(progress(100, load=0.75))


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
