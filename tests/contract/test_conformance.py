"""The openai package takes every answer for what it is: its own types, its helpers for tools and schemas, its errors.

And no body, however strange, makes the server fail.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import openai
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion, ErrorObject, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from pdd.adapters.grammar import Grammars, grammars_of
from services.router.schema import ChatRequest, CompletionRequest
from services.router.text import ModelText
from tests.contract.text_edge import HELLO, WAIT_S, Edge, in_loop, make_edge, serving
from tests.contract.text_model import CONTEXT, END, make_text_folder

CALL = '<tool_call>\n{"name": "Weather", "arguments": {"city": "Köln", "days": 3}}\n</tool_call>'
RECORD = '{"city": "Köln 🙂", "days": 3}'


class Weather(pydantic.BaseModel):
    """What the weather will be."""

    city: str
    days: int


TOOL = openai.pydantic_function_tool(Weather)
CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def text(folder: Path) -> ModelText:
    return ModelText(folder)


@pytest.fixture(scope="module")
def grammars(folder: Path) -> Grammars:
    found = grammars_of(folder)
    assert found is not None
    return found


def says(edge: Edge, said: str) -> None:
    edge.machine.writes([*edge.ids(said), END], reason="stop", stop_token=END)


@asynccontextmanager
async def client_of(edge: Edge) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving(edge.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WAIT_S) as client,
    ):
        yield client


# -- types ------------------------------------------------------------------------------------------------------------

CHATS = {
    "plain": ({}, "Hi"),
    "several": ({"n": 2, "temperature": 0.5}, "Hi"),
    "logprobs": ({"logprobs": True, "top_logprobs": 2}, "naïve 🙂"),
    "tools": ({"tools": [TOOL]}, f"Let me see. {CALL}\n{CALL}"),
    "tools with logprobs": ({"tools": [TOOL], "logprobs": True}, CALL),
    "required": ({"tools": [TOOL], "tool_choice": "required"}, CALL),
    "schema": ({"response_format": {"type": "json_object"}}, RECORD),
    "parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "user": "me"}, "Hi"),
    "usage": ({"stream_options": {"include_usage": True, "continuous_usage_stats": True}}, "Hi"),
}


@pytest.mark.parametrize(("wishes", "said"), CHATS.values(), ids=CHATS)
@in_loop
async def test_chats_parse_strictly_whole_and_streamed_and_say_the_same(
    text, grammars, wishes: dict, said: str
) -> None:
    edge = make_edge(text, grammars=grammars)
    says(edge, said)
    whole = ChatCompletion.model_validate((await edge.chat(**wishes)).json(), strict=True)
    assert whole.object == "chat.completion" and whole.id.startswith("chatcmpl-")
    raw = (await edge.chat(**wishes, stream=True)).content
    lines = [line.removeprefix(b"data: ") for line in raw.split(b"\n\n") if line]
    chunks = [ChatCompletionChunk.model_validate(json.loads(line), strict=True) for line in lines[:-1]]
    assert lines[-1] == b"[DONE]" and {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    for choice in whole.choices:
        deltas = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert "".join(one.delta.content or "" for one in deltas) == (choice.message.content or "")
        assert deltas[-1].finish_reason == choice.finish_reason
        parts = [part for one in deltas for part in one.delta.tool_calls or []]
        for i, call in enumerate(choice.message.tool_calls or []):
            assert "".join(part.function.arguments for part in parts if part.index == i) == call.function.arguments
        entries = [entry for one in deltas if one.logprobs for entry in one.logprobs.content]
        assert entries == (choice.logprobs.content if choice.logprobs else [])


@pytest.mark.parametrize("wishes", [{}, {"logprobs": 2}, {"echo": True, "n": 2}, {"prompt": [[5, 6], [7]]}])
@in_loop
async def test_plain_completions_parse_strictly_whole_and_streamed(text, wishes: dict) -> None:
    edge = make_edge(text)
    says(edge, "naïve 🙂")
    body = {"prompt": "Go", "model": "tiny"} | wishes
    whole = Completion.model_validate((await edge.post(PLAIN, body)).json(), strict=True)
    raw = (await edge.post(PLAIN, body | {"stream": True})).content
    events = [json.loads(line.removeprefix(b"data: ")) for line in raw.split(b"\n\n") if line and b"[DONE]" not in line]
    chunks = [Completion.model_validate(_ended(event), strict=True) for event in events]
    assert all(event["choices"][0]["finish_reason"] for event in events) is False
    for choice in whole.choices:
        parts = [one for chunk in chunks for one in chunk.choices if one.index == choice.index]
        assert "".join(part.text for part in parts) == choice.text
        assert parts[-1].finish_reason == choice.finish_reason


def _ended(event: dict) -> dict:
    """OpenAI streams null until the end, and its type for both does not know that."""
    return event | {"choices": [one | {"finish_reason": one["finish_reason"] or "stop"} for one in event["choices"]]}


@in_loop
async def test_models_parse_strictly(text) -> None:
    async with make_edge(text).client() as client:
        listed = (await client.get("/v1/models")).json()
    assert [Model.model_validate(card, strict=True).id for card in listed["data"]] == ["tiny"]


@in_loop
async def test_every_error_is_one_that_the_client_knows(text) -> None:
    edge = make_edge(text)
    async with client_of(edge) as client:
        refusals = [
            (openai.BadRequestError, {"temperature": 9}),
            (openai.NotFoundError, {"model": "other"}),
            (openai.BadRequestError, {"response_format": {"type": "json_object"}}),
        ]
        for kind, wishes in refusals:
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(**HELLO | wishes)
            ErrorObject.model_validate(caught.value.body, strict=True)
        for kind, status in ((openai.RateLimitError, 429), (openai.InternalServerError, 503)):
            edge.machine.rejects(status, "code", "why", 1.0)
            with pytest.raises(kind) as caught:
                await client.chat.completions.create(**HELLO)
            ErrorObject.model_validate(caught.value.body, strict=True)


# -- helpers ----------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_pydantic_model_comes_back_as_itself(text, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    says(edge, RECORD)
    async with client_of(edge) as client:
        whole = await client.chat.completions.parse(**HELLO, response_format=Weather)
        async with client.chat.completions.stream(**HELLO, response_format=Weather) as stream:
            streamed = await stream.get_final_completion()
    for answer in (whole, streamed):
        assert answer.choices[0].message.parsed == Weather(city="Köln 🙂", days=3)


@in_loop
async def test_a_tools_arguments_come_back_as_its_model(text, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    says(edge, CALL)
    async with client_of(edge) as client:
        answer = await client.chat.completions.parse(**HELLO, tools=[TOOL])
    [call] = answer.choices[0].message.tool_calls
    assert call.function.parsed_arguments == Weather(city="Köln", days=3)
    assert edge.machine.asked[0].sampling.grammar, "the helper's tools are strict"


@in_loop
async def test_an_agents_second_turn_with_the_clients_own_messages_is_understood(text, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    says(edge, CALL)
    async with client_of(edge) as client:
        first = await client.chat.completions.create(**HELLO, tools=[TOOL])
        said = first.choices[0].message
        history = [
            *HELLO["messages"],
            said,
            {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "Sunny."},
        ]
        says(edge, "It is sunny.")
        second = await client.chat.completions.create(model="tiny", messages=history, tools=[TOOL])
    assert second.choices[0].message.content == "It is sunny."
    assert CALL in text.decode(edge.machine.asked[1].ids, skip_special=False), "what the model wrote is what it reads"


# -- fuzz -------------------------------------------------------------------------------------------------------------

JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
LEAVES = [
    {},
    {"type": "string"},
    {"type": "integer", "minimum": 3},
    {"enum": ["a", 1]},
    {"$ref": "#/$defs/a"},
    {"type": "x"},
]
KEYS = st.text("ab", max_size=2)


def _larger(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    records = st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(KEYS, inner, max_size=2)})
    lists = st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"minItems": st.integers(-1, 3)})
    return records | lists | st.fixed_dictionaries({"anyOf": st.lists(inner, max_size=2)})


SCHEMAS = st.recursive(st.sampled_from(LEAVES), _larger, max_leaves=4)
FUNCTIONS = st.fixed_dictionaries(
    {"name": st.sampled_from(["f", "g", "Weather", "a b", ""])},
    optional={"parameters": SCHEMAS | JUNK, "strict": st.booleans(), "description": st.text(max_size=5)},
)
NAMED = st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTIONS})
TOOLS = st.lists(NAMED | JUNK, max_size=2)
CHOICES = st.sampled_from(["auto", "none", "required"]) | NAMED | JUNK
DESCRIBED = st.fixed_dictionaries({}, optional={"schema": SCHEMAS | JUNK, "strict": st.booleans()})
FORMATS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "json_object", "json_schema", "x"])}, optional={"json_schema": DESCRIBED}
)
OUTPUTS = st.fixed_dictionaries(
    {},
    optional={
        "json": SCHEMAS,
        "regex": st.text("ab(/\\|[]\n+", max_size=5),
        "choice": st.lists(st.text(max_size=3), max_size=2),
        "grammar": st.text('start: "a()\n', max_size=9),
    },
)
SHAPED = {
    "tools": TOOLS,
    "tool_choice": CHOICES,
    "response_format": FORMATS | JUNK,
    "structured_outputs": OUTPUTS | JUNK,
    "parallel_tool_calls": st.booleans(),
    "stream": st.booleans(),
    "logprobs": st.booleans() | st.integers(0, 3),
    "n": st.integers(0, 3),
    "stop": st.text(max_size=2) | st.lists(st.text(max_size=2), max_size=2),
    "logit_bias": st.dictionaries(st.sampled_from(["1", "-1", "x", "413", "99999999999"]), st.floats(-101, 101)),
}
OTHERS = sorted(
    {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__} - set(SHAPED) - {"messages", "prompt"}
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
            "content": st.text(max_size=9) | JUNK,
        },
        optional={"tool_calls": JUNK | st.just([{"function": {"name": "f", "arguments": "[]"}}]), "name": JUNK},
    ),
    max_size=3,
)
BODIES = st.builds(
    lambda shaped, others, known: others | shaped | known,
    st.fixed_dictionaries({}, optional=SHAPED),
    st.dictionaries(st.sampled_from(OTHERS), JUNK | st.integers(0, 9) | st.floats(0, 1), max_size=1),
    st.fixed_dictionaries({"messages": MESSAGES | JUNK})
    | st.fixed_dictionaries({"prompt": st.text(max_size=9) | JUNK}),
)


@given(body=BODIES, path=st.sampled_from([CHAT, PLAIN, "/tokenize"]))
@settings(max_examples=150, deadline=None)
def test_no_body_makes_the_server_fail(text: ModelText, grammars: Grammars, body: dict, path: str) -> None:
    asyncio.run(_ask(make_edge, text, grammars, path, body))


async def _ask(make, text: ModelText, grammars: Grammars, path: str, body: dict) -> None:
    edge = make(text, grammars=grammars)
    says(edge, f"{CALL} x")
    async with edge.client() as client:
        answer: httpx.Response = await client.post(path, content=json.dumps(body).encode())
    unfit = (
        answer.status_code == 500 and answer.json()["error"]["code"] == "answer_unfit"
    )  # this machine writes what it likes
    assert answer.status_code in (200, 400, 404) or (unfit and edge.machine.asked[0].sampling.grammar), answer.text
    if answer.status_code in (400, 404):
        ErrorObject.model_validate(answer.json()["error"], strict=True)
        assert edge.machine.heard == []
    assert all(asked.sampling.max_tokens <= CONTEXT for asked in edge.machine.asked)
    assert len(edge.open_requests) == 0
