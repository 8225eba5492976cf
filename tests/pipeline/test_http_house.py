"""What clients get over HTTP when a request is handed over: limits, log probabilities, choices and bytes as if one engine wrote all."""

import json
from pathlib import Path

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.router.text import ModelText
from tests.contract.text_edge import in_loop
from tests.contract.text_model import CONTEXT, END, make_text_folder
from tests.pipeline.http_house import HttpHouse, make_http_house

CHAT = "/v1/chat/completions"
SAID = "The relay writes the first words while the cache is on its way. " * 3
BODY = {"model": "tiny", "messages": [{"role": "user", "content": SAID}]}
ROUTES = [
    {},
    {"x_pdd_route": "P-MD"},
    *({"x_pdd_route": "P-RLD-MD", "x_pdd_handover_after": str(n)} for n in (1, 2, 4, 16)),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def text(folder: Path) -> ModelText:
    return ModelText(folder)


def expected(house: HttpHouse, i: int = 0) -> tuple[str, str, int]:
    """Text, finish reason and number of tokens of a request's answer, had one engine written it."""
    asked = house.asked[i]
    ids = house.alone(asked)
    ended = ids[-1] in asked.sampling.stop_token_ids
    return house.text.decode(ids[:-1] if ended else ids), "stop" if ended else "length", len(ids)


# -- limits (CASES 1 and 3) -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", ROUTES, ids=range(len(ROUTES)))
@pytest.mark.parametrize(
    "limits",
    [
        {"max_tokens": 1},
        {"max_completion_tokens": 5},
        {"min_tokens": 20, "max_tokens": 40},
        {},
        {"max_tokens": 40, "ignore_eos": True},
    ],
)
@in_loop
async def test_limits_count_relay_and_main_together(text: ModelText, folder: Path, limits: dict, headers: dict) -> None:
    house = make_http_house(text, folder, mean_outputs=30)
    answer = await house.post(CHAT, BODY | limits, x_pdd_report="1", **headers)
    parsed = ChatCompletion.model_validate(answer.json(), strict=True)
    choice = parsed.choices[0]
    assert (choice.message.content, choice.finish_reason, parsed.usage.completion_tokens) == expected(house)
    limit = limits.get("max_tokens") or limits.get("max_completion_tokens") or CONTEXT - parsed.usage.prompt_tokens
    assert limits.get("min_tokens", 1) <= parsed.usage.completion_tokens <= limit
    assert parsed.usage.prompt_tokens == len(house.asked[0].ids)
    spoke = answer.json()["pdd"]["spoke"]
    assert [start for _, start, _ in spoke] == [0, *(stop for _, _, stop in spoke[:-1])]
    assert not house.house.leftovers() or house.house.settle(15)


# -- log probabilities and choices (CASE 4) ---------------------------------------------------------------------------


@pytest.mark.parametrize("headers", ROUTES, ids=range(len(ROUTES)))
@in_loop
async def test_every_token_has_one_entry_the_first_and_the_boundary_included(
    text: ModelText, folder: Path, headers: dict
) -> None:
    house = make_http_house(text, folder)
    answer = await house.post(CHAT, BODY | {"max_tokens": 24, "logprobs": True, "top_logprobs": 3, "n": 2}, **headers)
    parsed = ChatCompletion.model_validate(answer.json(), strict=True)
    assert len(parsed.choices) == 2
    for i, choice in enumerate(parsed.choices):
        ids = house.alone(house.asked[i])
        spelled = [list(text.bytes_of(token)) for token in ids]
        assert [entry.bytes for entry in choice.logprobs.content] == spelled
        assert all(len(entry.top_logprobs) == 3 for entry in choice.logprobs.content)
    assert parsed.usage.completion_tokens == 48


# -- bytes of a stream (CASE 5) ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", ROUTES, ids=range(len(ROUTES)))
@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}])
@in_loop
async def test_a_stream_shows_no_seam(text: ModelText, folder: Path, options: dict | None, headers: dict) -> None:
    house = make_http_house(text, folder, mean_outputs=25)
    body = BODY | {"stream": True, "max_tokens": 60, "stream_options": options}
    raw = (await house.post(CHAT, body, **headers)).content
    assert raw.endswith(b"\n\n") and raw.count(b"[DONE]") == 1
    *lines, done = raw[:-2].split(b"\n\n")
    assert done == b"data: [DONE]"
    lines = [line for line in lines if not line.startswith(b":")]
    assert all(line.startswith(b"data: ") and b"\n" not in line for line in lines)
    chunks = [ChatCompletionChunk.model_validate(json.loads(line[6:]), strict=True) for line in lines]
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    said, finish, count = expected(house)
    if options and options["include_usage"]:
        last = chunks.pop()
        assert (last.choices, last.usage.completion_tokens) == ([], count)
    assert all(chunk.usage is None for chunk in chunks)
    choices = [chunk.choices[0] for chunk in chunks]
    assert "".join(choice.delta.content or "" for choice in choices) == said
    assert [choice.delta.role for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + [finish]


# -- what ends at the text layer, and what cannot be had --------------------------------------------------------------


@pytest.mark.parametrize("headers", ROUTES, ids=range(len(ROUTES)))
@in_loop
async def test_a_stop_string_across_the_fence_cuts_and_frees_everything(
    text: ModelText, folder: Path, headers: dict
) -> None:
    first = make_http_house(text, folder)
    await first.post(CHAT, BODY | {"max_tokens": 40, "seed": 1})
    said = expected(first)[0]
    at = next(i for i in range(8, len(said) - 3) if said.find(said[i : i + 3]) == i and "\ufffd" not in said[i : i + 3])
    house = make_http_house(text, folder)
    answer = (await house.post(CHAT, BODY | {"max_tokens": 40, "seed": 1, "stop": said[at : at + 3]}, **headers)).json()
    assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == (said[:at], "stop")
    assert house.house.settle(15), house.house.leftovers()


@in_loop
async def test_a_form_that_no_worker_can_bind_is_refused_and_the_rest_is_served(text: ModelText, folder: Path) -> None:
    house = make_http_house(text, folder)
    refused = await house.post(CHAT, BODY | {"response_format": {"type": "json_object"}})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "unsupported_feature")
    assert (await house.post(CHAT, BODY | {"max_tokens": 3})).status_code == 200


@in_loop
async def test_plain_completions_of_texts_and_ids_are_handed_over_too(text: ModelText, folder: Path) -> None:
    house = make_http_house(text, folder)
    ids = list(text.encode(SAID, special=True))
    for prompt in (SAID, ids):
        answer = await house.post("/v1/completions", {"prompt": prompt, "max_tokens": 20}, x_pdd_route="P-RLD-MD")
        assert answer.json()["choices"][0]["text"] == expected(house, -1)[0]
    assert house.asked[0].ids == house.asked[1].ids == tuple(ids)
    assert END in house.asked[0].sampling.stop_token_ids
