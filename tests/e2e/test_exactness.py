"""Law 1 over real processes: what the client gets is, id by id, what one engine alone writes, whatever was handed over."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loadgen.demo.alone import answers
from pdd.core.sampling import Sampling
from tests.e2e.client import Client, until
from tests.e2e.conftest import PAGE
from tests.models import alone, prompt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FENCES = (1, 2, PAGE - 1, PAGE, PAGE + 1, 63, 64, 65)
LENGTH = 72  # outputs; more than the last fence


def test_prefill_and_main_write_what_one_engine_writes(torch_client: Client, model: Path) -> None:
    for length in (1, PAGE, 100, 333):
        ids = prompt(length, seed=length)
        answer = torch_client.complete(ids, LENGTH, route="P-MD")
        assert answer.speakers == [("prefill", 0, 1), ("main_decode", 1, LENGTH)]
        assert answer.ids == alone(model, ids, LENGTH)


@pytest.mark.parametrize("fence", FENCES)
def test_main_takes_over_at_the_fence_and_nobody_can_tell(torch_client: Client, model: Path, fence: int) -> None:
    ids = prompt(190 + fence, seed=1000 + fence)
    answer = torch_client.complete(ids, LENGTH, route="P-RLD-MD", fence=fence)
    relayed = [("relay_decode", 1, fence)] if fence > 1 else []
    assert answer.speakers == [("prefill", 0, 1), *relayed, ("main_decode", fence, LENGTH)]
    assert answer.report["fence"] == fence
    assert answer.ids == alone(model, ids, LENGTH)


@pytest.mark.parametrize("seeded", [False, True], ids=["greedy", "seeded"])
def test_twenty_prompts_handed_over_near_block_borders(torch_client: Client, model: Path, seeded: bool) -> None:
    """CASE 2."""
    fences = (1, 2, PAGE - 1, PAGE, PAGE + 1) * 4
    prompts = [prompt(20 + 9 * i, seed=50 + i) for i in range(len(fences))]
    sampling = Sampling(24, seed=7, temperature=0.9, top_p=0.95, top_k=40) if seeded else Sampling(24)
    drawn = {"seed": 7, "temperature": 0.9, "top_p": 0.95, "top_k": 40} if seeded else {}
    served = [
        torch_client.complete(ids, 24, route="P-RLD-MD", fence=fence, **drawn).ids
        for ids, fence in zip(prompts, fences, strict=True)
    ]
    assert served == answers(model, "float32", prompts, sampling, lambda done: None)
    assert len({tuple(ids) for ids in served}) == len(served)  # varied outputs: equality says something


def test_a_second_turn_finds_the_first_one_in_mains_cache(torch_client: Client, model: Path) -> None:
    first = prompt(150, seed=31)
    answer = torch_client.complete(first, 40, route="P-RLD-MD", fence=PAGE)
    second = first + answer.ids + prompt(30, seed=32)
    again = torch_client.complete(second, 40)
    # MD computed over all of the first turn, its own outputs included; P never saw those.
    assert again.hit("main_decode") >= (150 + 40 - 1) // PAGE * PAGE
    assert 0 < again.hit("prefill") <= 150
    assert again.usage["prompt_tokens_details"]["cached_tokens"] == again.hit("prefill")
    assert again.ids == alone(model, second, 40)


def test_sixteen_at_once_on_both_routes_do_not_mix(torch_client: Client, model: Path) -> None:
    prompts = [prompt(60 + 17 * i, seed=200 + i) for i in range(16)]

    def ask(i: int) -> list[int]:
        route, fence = ("P-RLD-MD", FENCES[i % len(FENCES)]) if i % 2 else ("P-MD", 0)
        return torch_client.complete(prompts[i], LENGTH, route=route, fence=fence).ids

    with ThreadPoolExecutor(16) as pool:
        served = list(pool.map(ask, range(16)))
    assert served == [alone(model, ids, LENGTH) for ids in prompts]


def test_text_is_the_same_streamed_or_whole_though_characters_cross_the_fence(torch_client: Client) -> None:
    ids = prompt(80, seed=77)
    asked = {"prompt": ids, "max_tokens": 60, "temperature": 0, "ignore_eos": True, "skip_special_tokens": False}
    whole = torch_client.complete(ids, 60, route="P-MD", skip_special_tokens=False)
    expected = torch_client.post("/detokenize", {"tokens": whole.ids}).json()["prompt"]
    assert whole.text == expected
    for fence in (7, 8, 9):
        with torch_client.http.stream(
            "POST",
            "/v1/completions",
            json=asked | {"stream": True},
            headers={"x-pdd-route": "P-RLD-MD", "x-pdd-handover-after": str(fence)},
        ) as stream:
            assert "".join(texts_of(stream.iter_lines())) == expected


def test_a_stop_string_that_begins_before_the_fence_and_ends_behind_it_is_found(torch_client: Client) -> None:
    ids = prompt(90, seed=78)
    whole = torch_client.complete(ids, 40, route="P-MD")
    until_8, until_12 = (
        torch_client.post("/detokenize", {"tokens": whole.ids[:count]}).json()["prompt"] for count in (8, 12)
    )
    stop = whole.text[len(until_8) - 1 : len(until_12)]
    answer = torch_client.complete(ids, 40, route="P-RLD-MD", fence=10, stop=stop)
    assert answer.finish == "stop"
    assert answer.text == whole.text[: whole.text.index(stop)]


def test_afterwards_nobody_holds_anything(torch_client: Client) -> None:
    until(lambda: not torch_client.held())


def texts_of(lines: Iterable[str]) -> list[str]:
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    return [choice["text"] for event in events[:-1] for choice in json.loads(event)["choices"]]
