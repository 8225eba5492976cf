"""Singular traffic: which transfers may be cut, and the guard that keeps MD's cache beside P's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.singular import Singular, SingularSettings, finishes_first


def guard(cap: float = 0.05, gap: float = 0.1) -> Singular:
    return Singular(SingularSettings(cap=cap, gap=gap))


@pytest.mark.parametrize(
    ("left", "step_s", "crossing_s", "first"),
    [(10, 0.1, 1.1, True), (10, 0.1, 1.0, False), (10, 0.1, 0.5, False), (0, 0.1, 0.01, True), (5, 0.1, -1.0, False)],
)
def test_the_relay_is_first_when_all_it_may_write_takes_less_than_the_line(
    left: int, step_s: float, crossing_s: float, first: bool
) -> None:
    assert finishes_first(left, step_s, crossing_s) is first


def test_a_new_router_cuts_nothing_until_it_has_served_enough_for_a_share() -> None:
    watched, served = guard(), 0
    while watched.why_not() == "cap":
        watched.ended(was_cut=False)
        served += 1
    assert served == 23 and watched.why_not() is None


def test_a_cap_of_all_stands_against_no_cut() -> None:
    watched = guard(cap=1.0)
    for cut in (True, True, False, True):
        assert watched.why_not() is None
        watched.ended(was_cut=cut)


def test_a_cap_of_zero_withholds_every_cut() -> None:
    assert guard(cap=0.0).why_not() == "cap"


@given(st.lists(st.booleans(), max_size=400), st.floats(0.0, 0.5))
def test_however_many_could_be_cut_the_share_stays_at_its_cap(could: list[bool], cap: float) -> None:
    watched = guard(cap=cap)
    for wanted in could:
        watched.ended(was_cut=wanted and watched.why_not() is None)
        assert watched.share <= cap


@given(st.integers(1, 7), st.floats(0.0, 0.3))
def test_over_many_requests_no_more_than_the_cap_are_cut(every: int, cap: float) -> None:
    watched, cuts, count = guard(cap=cap), 0, 2000
    for number in range(count):
        cut = number % every == 0 and watched.why_not() is None
        cuts += cut
        watched.ended(was_cut=cut)
    assert cuts <= cap * count + 1e-6


def test_a_prefix_that_only_prefill_knows_opens_the_gap_and_withholds_cuts() -> None:
    watched = guard()
    for _ in range(20):
        watched.served(1000, 900, 0)
    assert watched.gap == pytest.approx(0.9) and watched.why_not() == "gap"


def test_the_gap_is_what_hits_at_prefill_are_ahead_of_hits_at_main_decode() -> None:
    watched = guard()
    assert (watched.at_prefill, watched.at_main, watched.gap) == (0.0, 0.0, 0.0)
    watched.served(1000, 900, 600)
    watched.served(1000, 700, 600)
    assert watched.at_main == pytest.approx(0.6) and 0.7 < watched.at_prefill < 0.9
    assert watched.gap == pytest.approx(watched.at_prefill - watched.at_main)


def test_the_gap_closes_when_main_decode_has_learned() -> None:
    watched = guard(cap=1.0)
    for _ in range(20):
        watched.served(1000, 900, 0)
    for _ in range(300):
        watched.served(1000, 900, 900)
    assert watched.why_not() is None


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=100))
def test_the_gap_is_a_share_of_tokens(requests: list[tuple[int, float, float]]) -> None:
    watched = guard()
    for prompt, at_prefill, at_main in requests:
        watched.served(prompt, int(prompt * at_prefill), int(prompt * at_main))
        assert -1.0 <= watched.gap <= 1.0


def test_short_prompts_weigh_little_against_long_ones() -> None:
    watched = guard()
    for _ in range(200):
        watched.served(100, 100, 0)
        watched.served(100_000, 50_000, 50_000)
    assert watched.gap < 0.01
