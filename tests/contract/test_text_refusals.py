"""What cannot be had is refused at once, in OpenAI's error shape, naming the field and its limit; the machine hears nothing of it."""

import asyncio
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.schema import MAX_CHOICES, MAX_STOP_CHARS, ChatRequest, CompletionRequest
from services.router.text import ModelText
from tests.contract.text_edge import HELLO, in_loop, make_edge
from tests.contract.text_model import CONTEXT, END, make_text_folder


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return ModelText(make_text_folder(tmp_path_factory.mktemp("model")))


def chat(**fields):
    return "/v1/chat/completions", HELLO | fields


def plain(**fields):
    return "/v1/completions", {"prompt": "Hi"} | fields


USER = {"role": "user"}
REFUSED = [
    (*chat(temperature=3), 400, "temperature", "2.0"),
    (*chat(top_p=0), 400, "top_p", "0"),
    (*chat(max_tokens=0), 400, "max_tokens", "1"),
    (*chat(max_tokens="9"), 400, "max_tokens", "int"),
    (*chat(n=MAX_CHOICES + 1), 400, "n", str(MAX_CHOICES)),
    (*chat(stop=["a"] * 5), 400, "stop", "4"),
    (*chat(stop="a" * (MAX_STOP_CHARS + 1)), 400, "stop", str(MAX_STOP_CHARS)),
    (*chat(stop=""), 400, "stop", "1"),
    (*chat(top_logprobs=2), 400, "top_logprobs", "logprobs"),
    (*chat(logprobs=True, top_logprobs=21), 400, "top_logprobs", "20"),
    (*chat(logit_bias={"4": 101}), 400, "logit_bias[...]", "100"),
    (*chat(logit_bias={"99999": 1}), 400, "logit_bias", "vocabulary"),
    (*chat(min_tokens=5, max_tokens=4), 400, "min_tokens", "4"),
    (*chat(stream="yes"), 400, "stream", "bool"),
    (*chat(messages=[]), 400, "messages", "1"),
    (*chat(messages="hi"), 400, "messages", "array"),
    (*chat(messages=[USER | {"role": "pope"}]), 400, "messages[0].role", "pope"),
    (*chat(messages=[USER | {"content": 5}]), 400, "messages[0].content", "str"),
    (*chat(messages=[USER | {"content": [{"type": "image_url"}]}]), 400, "messages[0].content[0].type", "text"),
    (*chat(tools=[{"type": "function"}]), 400, "tools[0].function", "required"),
    (*chat(response_format={"type": "json_object"}), 400, "response_format", "no worker"),
    (*chat(audio={"voice": "x"}), 400, "audio", "not supported"),
    (*chat(model="other"), 404, "model", "tiny"),
    (*plain(suffix="x"), 400, "suffix", "not supported"),
    (*plain(echo=True, logprobs=1), 400, "echo", "logprobs"),
    (*plain(prompt=[]), 400, "prompt", "empty"),
    (*plain(prompt=[[]]), 400, "prompt", "empty"),
    (*plain(prompt=[1, "a"]), 400, "prompt", "mixes"),
    (*plain(prompt=[1, 10**6]), 400, "prompt", "vocabulary"),
    (*plain(prompt=["a"] * 9, n=2), 400, "n", str(MAX_CHOICES)),
    ("/v1/completions", {}, 400, "prompt", "required"),
    ("/tokenize", {}, 400, "prompt", "either"),
    ("/detokenize", {"tokens": ["a"]}, 400, "tokens[0]", "int"),
]


@pytest.mark.parametrize(("path", "body", "status", "param", "said"), REFUSED)
@in_loop
async def test_a_wrong_request_is_refused_at_once_naming_field_and_limit(text, path, body, status, param, said):
    edge = make_edge(text)
    answer = await edge.post(path, body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert said in error["message"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert edge.machine.heard == []
    assert edge.notes.total("pdd_requests_refused_total") == (path not in ("/tokenize",))


@pytest.mark.parametrize(
    "neutral", [{"tools": []}, {"tool_choice": "none"}, {"response_format": {"type": "text"}}, {"stop": []}]
)
@in_loop
async def test_a_field_that_asks_for_nothing_is_fine(text, neutral):
    edge = make_edge(text)
    edge.machine.writes(edge.ids("a"))
    assert (await edge.chat(**neutral)).status_code == 200
    assert (await edge.chat(**dict.fromkeys(neutral))).status_code == 200


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[1]", b'"x"', b'{"messages": "\xff"}', b'{"x":' + b"[" * 9999, b'{"n": NaN}']
)
@in_loop
async def test_a_body_that_is_no_request_is_refused(text, raw):
    edge = make_edge(text)
    async with edge.client() as client:
        answer = await client.post("/v1/chat/completions", content=raw)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


NESTED = {
    "arguments": '{"messages": [%s, {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "%s"}}]}]}',
    "schema": '{"messages": [%s], "structured_outputs": {"json": "%s"}}',
    "tool": '{"messages": [%s], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": %s}}}]}',
}


@pytest.mark.parametrize("where", NESTED)
@in_loop
async def test_however_deep_a_body_nests_it_is_read_or_refused(text, where):
    """What reads it has a limit somewhere, what writes it for the model another one."""
    edge = make_edge(text)
    edge.machine.writes(edge.ids("a"))
    async with edge.client() as client:
        for depth in range(700, 1100, 10):
            content = NESTED[where] % (json.dumps(HELLO["messages"][0]), "[" * depth + "]" * depth)
            answer = await client.post("/v1/chat/completions", content=content)
            assert answer.status_code in (200, 400), answer.text


@in_loop
async def test_more_prompts_than_there_may_be_are_refused_before_any_is_read(text):
    edge = make_edge(text)
    began = time.process_time()
    answer = await edge.post("/v1/completions", {"prompt": ["x " * 8000] * 500})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert time.process_time() - began < 1, "encoding them takes five seconds"


@in_loop
async def test_a_body_over_the_limit_is_refused_with_the_limit(text):
    edge = make_edge(text, max_body_bytes=1000)

    async def in_parts():
        for _ in range(20):
            yield b" " * 100

    async with edge.client() as client:
        for content in (b" " * 1001, in_parts()):
            answer = await client.post("/v1/chat/completions", content=content)
            assert answer.status_code == 413
            assert "1000 bytes" in answer.json()["error"]["message"]
        edge.machine.writes(edge.ids("a"))
        answer = await client.post("/v1/chat/completions", content=json.dumps(HELLO).encode().ljust(1000))
        assert answer.status_code == 200


@pytest.mark.parametrize(
    ("said", "limit"),
    [("x " * CONTEXT, None), ("x" * 200_000, None), ("x", CONTEXT)],
    ids=["prompt", "hopeless prompt", "prompt and answer"],
)
@in_loop
async def test_what_does_not_fit_the_context_is_refused_with_the_limit(text, said, limit):
    edge = make_edge(text)
    answer = await edge.chat(messages=[USER | {"content": said}], max_tokens=limit)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == ("max_tokens" if limit else "messages")
    assert f"{CONTEXT} tokens" in error["message"]
    assert edge.machine.heard == []


@pytest.mark.parametrize(
    ("status", "code", "kind", "retry"),
    [
        (400, "context_length_exceeded", "invalid_request_error", None),
        (429, "overloaded", "rate_limit_error", 2.0),
        (503, "no_worker", "server_error", 0.2),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@in_loop
async def test_what_the_machine_refuses_is_an_error_with_its_status(text, status, code, kind, retry, stream):
    edge = make_edge(text)
    edge.machine.rejects(status, code, "the limit is 64 tokens", retry)
    answer = await edge.chat(stream=stream)
    assert answer.status_code == status
    assert answer.json() == {"error": {"message": "the limit is 64 tokens", "type": kind, "param": None, "code": code}}
    assert answer.headers.get("retry-after") == (None if retry is None else str(max(1, round(retry))))
    assert edge.machine.ended == []


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
MESSAGE = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
        "content": st.text(max_size=9) | JUNK,
    },
    optional={"tool_calls": JUNK | st.just([{"function": {"name": "f", "arguments": "[]"}}]), "name": JUNK},
)
FIELDS = st.dictionaries(
    st.sampled_from(sorted({*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__})),
    JUNK | st.integers(0, 9) | st.floats(0, 1) | st.just({"messages": []}),
    max_size=4,
)


@given(
    body=st.builds(dict, FIELDS, messages=st.lists(MESSAGE, max_size=3) | JUNK)
    | st.builds(dict, FIELDS, prompt=st.text(max_size=20) | st.lists(st.integers(0, 500), max_size=5) | JUNK),
    path=st.sampled_from(["/v1/chat/completions", "/v1/completions", "/tokenize"]),
)
@settings(max_examples=120, deadline=None)
def test_no_body_makes_the_server_fail(text, body, path):
    async def ask():
        edge = make_edge(text)
        edge.machine.writes([*edge.ids("a STOP b"), END], reason="stop", stop_token=END)
        async with edge.client() as client:
            raw = json.dumps(body).encode()
            answer = await client.post(path, content=raw)
        assert answer.status_code in (200, 400, 404), answer.text
        if answer.status_code == 200 and path != "/tokenize":
            assert edge.machine.asked
            assert all(asked.sampling.max_tokens <= CONTEXT for asked in edge.machine.asked)
        assert len(edge.open_requests) == 0

    asyncio.run(ask())
