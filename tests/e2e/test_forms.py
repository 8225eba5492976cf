"""Answers bound to a form, and tool calls, over real processes: the same whoever writes them; and where their time went."""

import json

import httpx
import pytest
from openai.types.chat import ChatCompletion

from pdd.cli.trace import SpanSeen, find, rows_of
from tests.e2e.client import Client, hooks, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

NUMBERS = {"structured_outputs": {"regex": r"\[([1-9][0-9]{0,4}, ){30,40}1\]"}}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Köln", "Bonn"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
BODY = {
    "messages": [{"role": "user", "content": "The relay writes the first words while the cache is on its way. " * 4}],
    "temperature": 1.2,
    "seed": 11,
    "max_tokens": 400,
}


def ask(client: Client, body: dict[str, object], **headers: str) -> ChatCompletion:
    answer: httpx.Response = client.post("/v1/chat/completions", BODY | body, **headers)
    assert answer.status_code == 200, answer.text
    return ChatCompletion.model_validate(answer.json(), strict=True)


@pytest.mark.parametrize("fence", [1, 2, 15, 16, 17, 63, 64, 65])
def test_a_bound_answer_is_the_same_wherever_it_is_handed_over(torch_client: Client, fence: int) -> None:
    direct = ask(torch_client, NUMBERS, **hooks("P-MD")).choices[0]
    moved = ask(torch_client, NUMBERS | {"cache_salt": str(fence)}, **hooks("P-RLD-MD", fence))
    assert moved.choices[0].message.content == direct.message.content
    assert direct.finish_reason == "stop" and 31 <= len(json.loads(direct.message.content or "")) <= 41
    assert moved.model_extra is not None and moved.usage is not None and moved.usage.completion_tokens > 65
    assert moved.model_extra["pdd"]["fence"] == fence


@pytest.mark.parametrize("fence", [1, 2, 16, 17])
def test_a_call_that_must_be_made_is_made_across_the_fence(torch_client: Client, fence: int) -> None:
    wishes = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    [choice] = ask(torch_client, wishes, **hooks("P-RLD-MD", fence)).choices
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls is not None
    [call] = choice.message.tool_calls
    assert call.type == "function" and call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Köln", "Bonn")


def test_a_requests_trace_is_put_together_from_every_process_that_had_a_part(torch_client: Client) -> None:
    answer = ask(torch_client, {"max_tokens": 40, "cache_salt": "trace"}, **hooks("P-RLD-MD", 16))
    addresses = [f"127.0.0.1:{part.ports['http']}" for part in torch_client.deployment.parts if "http" in part.ports]
    until(lambda: kinds(find(addresses, answer.id)) >= TOLD)  # some tell of their part when they let it go
    spans = find(addresses, answer.id)
    assert {span.trace for span in spans} == {spans[0].trace} and spans[0].root


TOLD = {
    *(("router@a", "request"), ("router@a", "route"), ("prefill", "prefill"), ("prefill", "kv")),
    *(("relay_decode", "relay"), ("main_decode", "main")),
}


def kinds(spans: list[SpanSeen]) -> set[tuple[str, str]]:
    """(process, span) by their kinds."""
    return {(row.who.partition("-")[0], row.name.partition(".")[0]) for row in rows_of(spans)} if spans else set()
