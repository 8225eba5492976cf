"""Chips, models and what a step costs: known figures come out, and more of anything never costs less."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.chips import CHIPS
from pdd.core.cost import COSTS, EngineCost
from pdd.core.llms import KIB, LLMS
from pdd.core.roofline import Reach, cache_tokens, engine_cost

PAIRS = [(chip, llm) for chip in CHIPS for llm in LLMS]


@pytest.mark.parametrize(
    ("name", "kib"),
    [("deepseek-v4-pro", 4.4), ("deepseek-v3", 68.6), ("qwen3-32b", 256), ("qwen3-235b", 188), ("qwen3-next-80b", 24)],
)
def test_a_tokens_kv_has_its_published_size(name: str, kib: float) -> None:
    assert LLMS[name].kv_bytes / KIB == pytest.approx(kib, rel=0.01)


def test_64k_tokens_of_a_dense_32b_model_are_16_gib() -> None:
    assert 65536 * LLMS["qwen3-32b"].kv_bytes == 16 * 2**30


def test_a_recurrent_state_is_within_the_published_range() -> None:
    assert 41 * 2**20 <= LLMS["qwen3-next-80b"].state_bytes <= 430 * 2**20


@pytest.mark.parametrize("llm", LLMS.values(), ids=LLMS)
def test_every_model_and_chip_names_its_source(llm) -> None:
    assert llm.source and all(chip.source for chip in CHIPS.values())
    assert 2 * llm.active_params * 0.4 < 2 * llm.all_weight_bytes, "what is active is part of the whole"


@pytest.mark.parametrize(("chip", "llm"), PAIRS)
def test_more_cards_never_make_a_step_longer(chip: str, llm: str) -> None:
    few, many = (engine_cost(CHIPS[chip], LLMS[llm], cards, Reach(step_s=0.0)) for cards in (8, 16))
    for work in ((8192, 8192 * 30_000.0, 0, 0), (0, 0.0, 32, 32 * 60_000), (256, 256 * 1000.0, 16, 16 * 9000)):
        assert many.seconds_of(*work) == pytest.approx(few.seconds_of(*work) / 2, rel=0.01)


def test_a_full_prefill_step_is_bound_by_compute_and_a_decode_step_by_memory() -> None:
    cost = engine_cost(CHIPS["H100"], LLMS["qwen3-32b"], 8, Reach(step_s=0.0))
    flops = 2 * 32.8e9 * 8192
    assert cost.seconds_of(8192, 0.0, 0, 0) == pytest.approx(flops / (8 * 0.5 * 989e12), rel=0.01)
    read = 65.6e9 + 32 * 60_000 * 256 * KIB
    assert cost.seconds_of(0, 0.0, 32, 32 * 60_000) == pytest.approx(read / (8 * 0.7 * 3.35e12), rel=0.01)
    many = cost.seconds_of(0, 0.0, 1024, 0)
    assert many == pytest.approx(2 * 32.8e9 * 1024 / (8 * 0.5 * 989e12), rel=0.01), (
        "enough of them compute longer than they read"
    )


def test_a_step_reads_only_the_experts_that_its_tokens_meet() -> None:
    cost = engine_cost(CHIPS["H200"], LLMS["deepseek-v3"], 16, Reach(step_s=0.0))
    one, many = cost.seconds_of(0, 0.0, 1, 0), cost.seconds_of(0, 0.0, 256, 0)
    all_of_them = cost.weights_s + cost.experts_s + 256 * cost.decode_s
    assert one < 0.15 * many and many == pytest.approx(all_of_them, rel=0.01)


def test_memory_chips_decode_faster_and_compute_chips_prefill_faster() -> None:
    h100, h20 = (engine_cost(CHIPS[name], LLMS["qwen3-32b"], 8, Reach()) for name in ("H100", "H20"))
    assert h20.seconds_of(0, 0.0, 32, 32 * 30_000) < h100.seconds_of(0, 0.0, 32, 32 * 30_000)
    assert h20.seconds_of(8192, 0.0, 0, 0) > 4 * h100.seconds_of(8192, 0.0, 0, 0)


def test_what_does_not_fit_has_no_cache() -> None:
    assert cache_tokens(CHIPS["H100"], LLMS["deepseek-v4-pro"], 8) == 0
    assert cache_tokens(CHIPS["H200"], LLMS["deepseek-v4-pro"], 16) > 100_000_000


@pytest.mark.parametrize("name", COSTS)
def test_the_scripted_engines_costs_are_what_they_were(name: str) -> None:
    """Rows without separate weights charge them in every step."""
    cost = COSTS[name]
    assert cost.seconds_of(0, 0.0, 0, 0) == cost.step_s
    assert cost.seconds_of(100, 0.0, 2, 50) == pytest.approx(
        cost.step_s + 100 / cost.prefill_tokens_per_s + 2 * cost.decode_s + 50 * cost.kv_read_s_per_token
    )


@given(
    st.integers(0, 10_000),
    st.integers(0, 200),
    st.integers(0, 10**7),
    st.floats(0, 0.1),
    st.floats(0, 0.1),
    st.floats(0, 1),
)
def test_more_work_never_takes_less_time(
    prefilled: int, decodes: int, read: int, weights_s: float, experts_s: float, share: float
) -> None:
    cost = EngineCost(0.01, 5000.0, 1e-9, 1e-4, 1e-8, weights_s=weights_s, experts_s=experts_s, expert_share=share)
    here = cost.seconds_of(prefilled, 1000.0, decodes, read)
    for more in (
        (prefilled + 1, 1000.0, decodes, read),
        (prefilled, 1001.0, decodes, read),
        (prefilled, 1000.0, decodes + 1, read),
    ):
        assert cost.seconds_of(*more) >= here - 1e-12
