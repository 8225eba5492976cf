"""Tools over HTTP, as the openai client sees them: what the model is told, what binds its answer, and calls in OpenAI's shape."""

import json
from pathlib import Path

import openai
import pytest
from openai.types.chat import ChatCompletion

from pdd.adapters.grammar import grammars_of
from services.router.schema import ChatMessage
from services.router.text import ModelText
from services.router.tool_format import HERMES, LLAMA, MISTRAL
from tests.contract.text_edge import HELLO, WAIT_S, Edge, in_loop, make_edge, serving
from tests.contract.text_model import END, make_text_folder

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Today's.", "parameters": CITY}}
ROWS = {"type": "function", "function": {"name": "rows"}}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln 🙂"}}\n</tool_call>'
MARKED = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls[0].function | tojson }}{% endif %}\n{% endfor %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def text(folder: Path) -> ModelText:
    return ModelText(folder)


@pytest.fixture(scope="module")
def grammars(folder: Path):
    return grammars_of(folder)


def says(edge: Edge, said: str, *, each: int = 1) -> None:
    edge.machine.writes([*edge.ids(said), END], reason="stop", stop_token=END, each=each)


def fits(edge: Edge, said: str) -> bool:
    """Whether what the machine was last asked for lets it say this, and end there."""
    constraint = edge.grammars.constraint(edge.machine.asked[-1].sampling.grammar)
    constraint.follow(edge.ids(said))
    return constraint.complete


# -- what the model is told -------------------------------------------------------------------------------------------


@in_loop
async def test_a_template_without_tools_is_told_of_them_in_the_system_message(text: ModelText) -> None:
    edge = make_edge(text)
    says(edge, "Hi")
    await edge.chat(tools=[WEATHER])
    told = text.decode(edge.machine.asked[-1].ids, skip_special=False)
    assert told.startswith("<|im_start|>system\n")
    assert json.dumps(WEATHER) in told and HERMES.begin in told and told.count("<|im_start|>system") == 1
    system = {"role": "system", "content": "Be brief."}
    await edge.chat(tools=[WEATHER], messages=[system, {"role": "user", "content": "Hi"}])
    told = text.decode(edge.machine.asked[-1].ids, skip_special=False)
    assert told.startswith("<|im_start|>system\nBe brief.\n\n") and told.count("<|im_start|>system") == 1


@in_loop
async def test_a_template_with_tools_gets_them_as_hugging_face_gives_them(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = make_text_folder(tmp_path, template=MARKED)
    edge = make_edge(ModelText(folder))
    says(edge, "Hi")
    await edge.chat(tools=[WEATHER, ROWS])
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = theirs.apply_chat_template(
        HELLO["messages"], tools=[WEATHER, ROWS], add_generation_prompt=True, return_dict=True
    )
    assert list(edge.machine.asked[-1].ids) == ids["input_ids"]


@pytest.mark.parametrize("none", [{"tools": []}, {"tools": [WEATHER], "tool_choice": "none"}, {"tool_choice": "auto"}])
@in_loop
async def test_without_a_tool_to_call_the_model_is_told_of_none_and_its_text_is_content(
    text: ModelText, none: dict
) -> None:
    edge = make_edge(text)
    says(edge, CALL)
    answer = (await edge.chat(**none)).json()["choices"][0]
    await edge.chat()
    assert edge.machine.asked[0].ids == edge.machine.asked[1].ids
    assert (answer["message"], answer["finish_reason"]) == ({"role": "assistant", "content": CALL}, "stop")


def test_a_history_with_calls_keeps_them_where_the_template_would_drop_them(text: ModelText) -> None:
    call = {"function": {"name": "weather", "arguments": '{"city": "Köln"}'}, "id": "1", "type": "function"}
    [said] = [ChatMessage(role="assistant", content="See.", tool_calls=[_call(call)])]
    told = text.render([said], add_generation_prompt=False)
    assert 'See.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>' in told


def _call(call: dict):
    from services.router.schema import FunctionCall, ToolCall

    return ToolCall(FunctionCall(**call["function"]), id=call["id"])


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ messages }}", HERMES),
        ("<tool_call> {{ tools }}", HERMES),
        ("[TOOL_CALLS] {{ tools }}", MISTRAL),
        ("{{ '\"parameters\": ' }} {{ tools }}", LLAMA),
    ],
)
def test_the_format_of_calls_is_told_from_the_template(tmp_path: Path, template: str, form: object) -> None:
    assert ModelText(make_text_folder(tmp_path, template=template)).tool_format is form


# -- calls in the answer ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [1, 3, 1000])
@pytest.mark.parametrize("said", ["", "Let me look.\n"])
@in_loop
async def test_calls_come_in_openais_shape_streamed_and_whole(text: ModelText, said: str, each: int) -> None:
    edge = make_edge(text)
    says(edge, f"{said}{CALL}\n{CALL.replace('weather', 'rows')}", each=each)
    asked = HELLO | {"tools": [WEATHER, ROWS]}
    whole = ChatCompletion.model_validate((await edge.chat(tools=[WEATHER, ROWS])).json(), strict=True).choices[0]
    assert (whole.finish_reason, whole.message.content) == ("tool_calls", said.rstrip() or None)
    calls = [(call.function.name, call.function.arguments) for call in whole.message.tool_calls]
    assert calls == [("weather", '{"city": "Köln 🙂"}'), ("rows", '{"city": "Köln 🙂"}')]
    assert len({call.id for call in whole.message.tool_calls}) == 2
    async with (
        serving(edge.app) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WAIT_S) as client,
        client.chat.completions.stream(**asked) as stream,
    ):
        events = [event async for event in stream]
        final = (await stream.get_final_completion()).choices[0]
    assert final.finish_reason == "tool_calls" and (final.message.content or None) == (said.rstrip() or None)
    assert [(call.function.name, call.function.arguments) for call in final.message.tool_calls] == calls
    deltas = [event.chunk.choices[0].delta for event in events if event.type == "chunk"]
    parts = [part for delta in deltas for part in delta.tool_calls or []]
    assert [part.index for part in parts if part.id] == [0, 1]
    assert all((part.id is None) == (part.function.name is None) for part in parts)
    if each == 1:
        assert len(parts) > 8, "arguments stream"


@in_loop
async def test_where_one_call_is_allowed_the_answer_ends_with_it(text: ModelText) -> None:
    edge = make_edge(text)
    says(edge, f"{CALL}\n{CALL}")
    answer = (await edge.chat(tools=[WEATHER], parallel_tool_calls=False)).json()["choices"][0]
    assert len(answer["message"]["tool_calls"]) == 1 and answer["finish_reason"] == "tool_calls"
    assert edge.machine.ended == [(edge.machine.asked[0].request, "stop")]


@in_loop
async def test_a_call_that_was_cut_short_says_length(text: ModelText) -> None:
    edge = make_edge(text)
    edge.machine.writes(edge.ids(CALL[:60]))
    answer = (await edge.chat(tools=[WEATHER])).json()["choices"][0]
    assert answer["finish_reason"] == "length"
    assert answer["message"]["tool_calls"][0]["function"]["arguments"].startswith('{"city"')


@in_loop
async def test_log_probabilities_count_every_token_of_a_call(text: ModelText) -> None:
    edge = make_edge(text)
    says(edge, CALL)
    answer = (await edge.chat(tools=[WEATHER], logprobs=True)).json()
    assert len(answer["choices"][0]["logprobs"]["content"]) == answer["usage"]["completion_tokens"]


@in_loop
async def test_each_choice_has_calls_of_its_own(text: ModelText) -> None:
    edge = make_edge(text)
    says(edge, CALL)
    answer = ChatCompletion.model_validate((await edge.chat(tools=[WEATHER], n=2)).json(), strict=True)
    assert [len(choice.message.tool_calls) for choice in answer.choices] == [1, 1]
    assert len({choice.message.tool_calls[0].id for choice in answer.choices}) == 2


@in_loop
async def test_a_mark_that_is_a_special_token_is_seen(tmp_path: Path) -> None:
    folder = make_text_folder(
        tmp_path, template="[TOOL_CALLS]{{ messages[0].content }}{{ tools }}", special=("[TOOL_CALLS]",)
    )
    edge = make_edge(ModelText(folder))
    says(edge, '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Köln"}}]')
    answer = (await edge.chat(tools=[WEATHER])).json()["choices"][0]
    assert answer["message"]["tool_calls"][0]["function"]["name"] == "weather" and answer["message"]["content"] is None


# -- what binds the answer --------------------------------------------------------------------------------------------


@in_loop
async def test_a_choice_that_is_left_to_the_model_binds_nothing(text: ModelText, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    says(edge, "Hi")
    await edge.chat(tools=[WEATHER])
    assert edge.machine.asked[-1].sampling.grammar == ""


@in_loop
async def test_required_means_calls_and_nothing_else(text: ModelText, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    says(edge, CALL)
    answer = await edge.chat(tools=[WEATHER, ROWS], tool_choice="required")
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
    rows = '<tool_call>\n{"name": "rows", "arguments": {"any": [1]}}\n</tool_call>'
    assert fits(edge, CALL) and fits(edge, rows) and fits(edge, f"{CALL}\n{rows}")
    assert not fits(edge, "Hi") and not fits(edge, CALL.replace("city", "town")) and not fits(edge, f"Hi {CALL}")
    await edge.chat(tools=[WEATHER, ROWS], tool_choice="required", parallel_tool_calls=False)
    assert fits(edge, CALL) and not fits(edge, f"{CALL}\n{rows}")


@in_loop
async def test_a_named_function_is_the_one_that_is_called(text: ModelText, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    says(edge, CALL)
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = (await edge.chat(tools=[ROWS, WEATHER], tool_choice=choice)).json()["choices"][0]
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["weather"]
    assert fits(edge, CALL) and not fits(edge, CALL.replace("weather", "rows")) and not fits(edge, f"{CALL}\n{CALL}")


@in_loop
async def test_a_strict_tool_binds_its_calls_and_leaves_the_text_free(text: ModelText, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    says(edge, "Hi")
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    assert (await edge.chat(tools=[strict])).json()["choices"][0]["message"]["content"] == "Hi"
    assert fits(edge, "Hi") and fits(edge, f"Let me see. {CALL} Done.") and fits(edge, "")
    assert not fits(edge, CALL.replace("city", "town"))


@in_loop
async def test_with_a_format_of_its_own_the_answer_is_calls_or_that(text: ModelText, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    says(edge, '{"a": 1}')
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": ["a"]}}}
    assert (await edge.chat(tools=[WEATHER], response_format=form)).status_code == 200
    assert fits(edge, '{"a": 1}') and fits(edge, CALL) and not fits(edge, "Hi") and not fits(edge, "{}")


@pytest.mark.parametrize("form", ["mistral", "llama"])
@in_loop
async def test_other_formats_are_bound_too(tmp_path: Path, form: str) -> None:
    template = {"mistral": "[TOOL_CALLS]", "llama": "{{ '\"parameters\": ' }}"}[
        form
    ] + "{{ messages[0].content }}{{ tools }}"
    folder = make_text_folder(tmp_path, template=template)
    edge = make_edge(ModelText(folder), grammars=grammars_of(folder))
    call = {
        "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Köln"}}]',
        "llama": '{"name": "weather", "parameters": {"city": "Köln"}}',
    }[form]
    says(edge, call)
    answer = (await edge.chat(tools=[WEATHER], tool_choice="required")).json()["choices"][0]
    assert answer["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Köln"}'
    assert fits(edge, call) and not fits(edge, "Hi")
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    await edge.chat(tools=[strict])
    assert fits(edge, "Hi there") and fits(edge, call) and not fits(edge, call.replace("city", "town"))


@pytest.mark.parametrize(
    ("wishes", "param"),
    [
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [WEATHER], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "x"}}}], "tool_choice": "required"}, "tools"),
    ],
)  # fmt: skip
@in_loop
async def test_wrong_tools_are_refused_naming_the_field(text: ModelText, grammars, wishes: dict, param: str) -> None:
    edge = make_edge(text, grammars=grammars)
    answer = await edge.chat(**wishes)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert edge.machine.heard == []
