"""The sampler means what `Sampling` says, and draws the same at whoever speaks an index."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pdd.adapters.engine_torch.sampler import draw, sample_rows, uniform
from pdd.core.ids import Epoch, Key, RequestId
from pdd.core.sampling import Sampling
from pdd.core.steps import Sequence, Slice

ROW = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, 2.0])


def token(
    sampling: Sampling, row: torch.Tensor = ROW, ids: list[int] | None = None, prompt_len: int = 0, index: int = 0
) -> int:
    return draw(row, sampling, ids or [], prompt_len, index).token


def shares(sampling: dict[str, float], row: torch.Tensor = ROW, count: int = 4000) -> dict[int, float]:
    wanted = Sampling(max_tokens=count, seed=7, **{"temperature": 1.0, **sampling})  # type: ignore[arg-type]
    drawn = Counter(draw(row, wanted, [], -i, i).token for i in range(count))
    return {name: drawn[name] / count for name in sorted(drawn)}


def test_greedy_takes_the_best_and_the_lowest_id_of_equals() -> None:
    assert token(Sampling(1)) == 0
    assert token(Sampling(1), -ROW) == 4


def test_the_random_number_depends_on_seed_and_index_alone() -> None:
    assert uniform(1, 2) == uniform(1, 2)
    assert len({uniform(seed, index) for seed in range(20) for index in range(20)}) == 400
    assert uniform(0, 0) == 0.3859926107094097  # on every machine


def test_random_numbers_are_spread_evenly() -> None:
    numbers = [uniform(3, i) for i in range(4000)]
    assert all(0 <= number < 1 for number in numbers)
    for tenth in range(10):
        assert sum(tenth / 10 <= n < (tenth + 1) / 10 for n in numbers) == pytest.approx(400, abs=80)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    expected = (ROW / temperature).softmax(0)
    for name, share in shares({"temperature": temperature}).items():
        assert share == pytest.approx(float(expected[name]), abs=0.03)


def test_top_k_keeps_the_k_best_and_those_equal_to_the_last() -> None:
    assert set(shares({"top_k": 3})) == {0, 1, 5}
    assert set(shares({"top_k": 1})) == {0, 5}
    assert set(shares({"top_k": 99})) == set(range(6))


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    row = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(shares({"top_p": 0.49}, row)) == {0}
    assert set(shares({"top_p": 0.7}, row)) == {0, 1}
    assert set(shares({"top_p": 0.9}, row)) == {0, 1, 2}
    assert set(shares({"top_p": 0.0}, row, 20)) == {0}
    assert set(shares({"top_p": 0.0}, torch.zeros(49), 20)) == {0}


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=50), st.floats(0.01, 0.999))
@settings(max_examples=200, deadline=None)
def test_no_draw_leaves_the_nucleus(logits: list[float], top_p: float) -> None:
    row = torch.tensor(logits)
    probabilities = row.double().softmax(0)
    for index in range(5):
        chosen = token(Sampling(9, temperature=1.0, top_p=top_p), row, index=index, prompt_len=-index)
        better = float(probabilities[probabilities > probabilities[chosen]].sum())
        assert better < top_p + 1e-9


def test_min_p_is_relative_to_the_best() -> None:
    row = torch.tensor([0.6, 0.25, 0.1, 0.05]).log()
    assert set(shares({"min_p": 0.3}, row)) == {0, 1}
    assert set(shares({"min_p": 0.1}, row)) == {0, 1, 2}


def test_a_tiny_temperature_is_greedy_without_overflow() -> None:
    assert set(shares({"temperature": 1e-30}, torch.tensor([1.0, 3.0, 2.0]), 50)) == {1}


def test_repetition_counts_the_prompt_and_the_others_do_not() -> None:
    row = torch.tensor([1.0, 0.9, -1.0])
    assert token(Sampling(9, repetition_penalty=1.2), row, [0, 2], prompt_len=2) == 1
    assert token(Sampling(9, presence_penalty=0.5), row, [0, 2], prompt_len=2) == 0
    assert token(Sampling(9, presence_penalty=0.5), row, [2, 0], prompt_len=1, index=1) == 1
    negative = torch.tensor([-1.0, -1.1])
    assert token(Sampling(9, repetition_penalty=2.0), negative, [0], prompt_len=1) == 1


def test_frequency_grows_with_each_output_and_presence_does_not() -> None:
    row = torch.tensor([1.0, 0.0])
    thrice = [5, 0, 0, 0]
    assert token(Sampling(9, frequency_penalty=0.4), row, thrice, prompt_len=1, index=3) == 1
    assert (
        token(Sampling(9, frequency_penalty=0.4), row, thrice, prompt_len=1, index=2) == 0
    )  # ids beyond the index are not seen
    assert token(Sampling(9, presence_penalty=0.4), row, thrice, prompt_len=1, index=3) == 0


def test_a_logit_bias_moves_the_choice_and_ids_outside_the_vocabulary_are_ignored() -> None:
    assert token(Sampling(9, logit_bias={3: 100.0, 10**6: 5.0})) == 3
    assert token(Sampling(9, logit_bias={0: -100.0, 5: -100.0})) == 1


def test_no_end_token_comes_before_min_tokens() -> None:
    sampling = Sampling(9, min_tokens=2, stop_token_ids=(0, 5, 10**6))
    assert [token(sampling, ids=[1] * index, index=index) for index in range(4)] == [1, 1, 0, 0]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    expected = ROW.double().log_softmax(0)
    sampled = draw(ROW, Sampling(9, temperature=0.7, top_k=1, logit_bias={4: 100.0}, logprobs=3), [], 0, 0)
    assert sampled.token == 4
    assert sampled.logprobs is not None
    assert sampled.logprobs.chosen == pytest.approx(float(expected[4]))
    assert [name for name, _ in sampled.logprobs.top] == [0, 5, 1]
    assert [value for _, value in sampled.logprobs.top] == pytest.approx([float(expected[i]) for i in (0, 5, 1)])
    only = draw(ROW, Sampling(9, logprobs=0), [], 0, 0).logprobs
    assert only is not None
    assert only.top == ()
    assert math.isclose(only.chosen, float(expected[0]))
    assert draw(ROW, Sampling(9), [], 0, 0).logprobs is None


def test_rows_of_one_batch_are_drawn_as_if_alone() -> None:
    rows = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    wanted = [
        Sampling(9),
        Sampling(9, temperature=1.0, seed=5),
        Sampling(9, logit_bias={7: 50.0}),
        Sampling(9, temperature=0.8, top_p=0.9, seed=6, presence_penalty=1.0),
    ]
    slices = []
    for at, sampling in enumerate(wanted):
        sequence = Sequence(Key(RequestId(str(at)), Epoch(1)), list(range(3 + at)), 3, sampling)
        slices.append(Slice(sequence, 2 + at, 3 + at, True))
    together = sample_rows(rows, slices)
    for row, part, sampled in zip(rows, slices, together, strict=True):
        sequence = part.sequence
        assert sampled == draw(row, sequence.sampling, sequence.ids, 3, sequence.outputs)


def test_half_precision_rows_are_drawn_too() -> None:
    assert token(Sampling(9, temperature=0.9, seed=4), ROW.bfloat16()) in range(6)


FRACTIONS = st.floats(0, 1, exclude_min=True, allow_subnormal=True)
PENALTIES = st.floats(-2, 2)
WISHES = st.builds(
    Sampling,
    max_tokens=st.just(9),
    temperature=st.floats(0, 2),
    top_p=FRACTIONS,
    top_k=st.integers(0, 2**31 - 1),
    min_p=st.floats(0, 1),
    repetition_penalty=FRACTIONS | st.floats(1, 10),
    presence_penalty=PENALTIES,
    frequency_penalty=PENALTIES,
    logit_bias=st.dictionaries(st.integers(0, 6), st.floats(-100, 100)),
    min_tokens=st.integers(0, 9),
    stop_token_ids=st.lists(st.integers(0, 6), max_size=7).map(tuple),
    logprobs=st.integers(-1, 20),
)


@given(wishes=WISHES, row=st.lists(st.floats(width=32), min_size=6, max_size=6))
@settings(max_examples=400, deadline=None)
def test_no_wish_that_a_client_may_have_and_no_row_makes_a_draw_fail(wishes: Sampling, row: list[float]) -> None:
    """A draw that raises takes its worker with it, and whoever else is served there."""
    assert 0 <= token(wishes, torch.tensor(row), [0, 1, 1, 5], 2, 2) < len(row)
