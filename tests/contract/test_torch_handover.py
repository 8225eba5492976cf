"""P and MD that differ: other pages exactly, another dtype converted and sane, another context limit refused by its number."""

import pytest

from pdd.adapters.engine_steps import SteppingEngine
from pdd.adapters.engine_torch import create_torch
from pdd.core.batch import Limits
from pdd.core.events import KvImported, SequenceRefused
from pdd.ports import Clock, Sink
from tests.contract.engines import GREEDY, SEEDED, EngineKind, Post, Rig, Sampling, key
from tests.models import tiny_model

DTYPES = {8: "float32", 16: "float32", 32: "bfloat16", 64: "float16"}  # by page size


def create(limits: Limits, sink: Sink, clock: Clock, post: Post) -> SteppingEngine:
    return create_torch(
        tiny_model(), fingerprint="f", sink=sink, clock=clock, post=post, dtype=DTYPES[limits.page_size],
        page_size=limits.page_size, pages=limits.pages, max_sequences=8, max_context=limits.max_context,
        chunk_tokens=limits.chunk_tokens,
    )  # fmt: skip


KIND = EngineKind(create, threaded=True, vocab=400)


@pytest.fixture
def rig() -> Rig:
    return Rig(KIND)


def handed_over(rig: Rig, ids: list[int], sampling: Sampling, sizes: tuple[int, int]) -> list[int]:
    """P computes and speaks token 0, MD imports and writes the rest."""
    prefill, main = rig.desk(page_size=sizes[0]), rig.desk(page_size=sizes[1])
    prefill.open("a", ids, sampling)
    prefill.speak("a", 1)
    rig.settle()
    main.open("a", ids, sampling, compute_last=False)
    main.take("a", prefill.export("a", 0, len(ids), piece=37))
    rig.settle()
    assert main.saw(KvImported(key("a")))
    main.append("a", 0, prefill.outputs("a"))
    main.speak("a")
    rig.settle()
    return prefill.outputs("a") + main.outputs("a")


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("sizes", [(8, 16), (16, 8)])
def test_pages_of_another_size_change_nothing(rig: Rig, sizes: tuple[int, int], sampling: Sampling) -> None:
    ids = rig.prompt(130)
    assert handed_over(rig, ids, sampling, sizes) == rig.alone(ids, sampling)


@pytest.mark.parametrize(
    "sizes", [(16, 32), (32, 16), (64, 32)], ids=lambda sizes: "-to-".join(DTYPES[n] for n in sizes)
)
def test_kv_of_another_dtype_goes_on_nearly_as_its_own_would(rig: Rig, sizes: tuple[int, int]) -> None:
    """Rounding may turn a close call, never the sense: of six prompts most begin as one engine in float32 begins them."""
    agreed = 0
    for seed in range(6):
        ids = rig.prompt(60 + 7 * seed, seed)
        written = handed_over(rig, ids, GREEDY, sizes)
        assert len(written) == GREEDY.max_tokens
        agreed += written[:3] == rig.alone(ids, GREEDY)[:3]
    assert agreed >= 4


def test_a_prompt_beyond_this_workers_context_is_refused_and_holds_nothing(rig: Rig) -> None:
    ids = rig.prompt(100)
    main = rig.desk(page_size=16, max_context=99)
    answer = main.open("a", ids, compute_last=False)
    assert isinstance(answer, SequenceRefused) and "99" in answer.reason
    assert main.engine.load().free_pages == main.limits.pages
    assert rig.desk(max_context=100).open("a", ids, compute_last=False) != answer
