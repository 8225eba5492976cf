"""Answers in a form: what may be asked, what is refused at once and within bounds, and what is done with an answer that does not fit."""

import asyncio
import json
from pathlib import Path

import httpx
import pytest

from pdd.adapters.grammar import grammars_of
from pdd.adapters.grammar_probe import probe
from pdd.core.grammar import grammar, json_value
from services.router.bounds import MAX_GRAMMAR_BYTES, Bounds
from services.router.errors import ApiError
from services.router.text import ModelText
from tests.contract.text_edge import HELLO, WAIT_S, in_loop, make_edge, serving
from tests.contract.text_model import END, make_text_folder

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "sun": {"type": "boolean"}},
    "required": ["city", "sun"],
    "additionalProperties": False,
}
RECORD = '{"city": "Köln", "sun": true}'
# An intersection of patterns that takes for ever to prove empty.
BOMB = {"allOf": [{"type": "string", "pattern": f".*[a-c].{{{i}}}[x-z].*"} for i in range(24)]}
# A counter whose states are their product: the text is read at once, and then it is compiled for hours.
ENDLESS = {"allOf": [{"type": "integer", "multipleOf": i} for i in range(2, 60)]}


def named(schema: object, **more: object) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema} | more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_text_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def text(folder: Path) -> ModelText:
    return ModelText(folder)


@pytest.fixture(scope="module")
def grammars(folder: Path):
    return grammars_of(folder)


def writes(edge, said: str, stop_token: int = END) -> None:
    edge.machine.writes([*edge.ids(said), stop_token], reason="stop", stop_token=stop_token)


FORMS = [
    ({"response_format": {"type": "json_object"}}, RECORD, "[1]"),
    ({"response_format": named(SCHEMA, strict=True)}, RECORD, '{"city": 1}'),
    ({"response_format": named({"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n"})}, "42", '"42"'),
    ({"structured_outputs": {"json": SCHEMA}}, RECORD, "{}"),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, RECORD, "{}"),
    ({"structured_outputs": {"json_object": True}}, RECORD, "1"),
    ({"structured_outputs": {"regex": r"a/b|[0-9]{2}"}}, "a/b", "a"),
    ({"structured_outputs": {"choice": ["yes", "no: \"é\""]}}, 'no: "é"', "maybe"),
    ({"structured_outputs": {"grammar": 'start: "a"+ "b"'}}, "aab", "ba"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "fit", "unfit"), FORMS, ids=range(len(FORMS)))
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@in_loop
async def test_a_form_reaches_the_engine_and_its_answer_the_client(text, grammars, path, asked, fit, unfit) -> None:
    edge = make_edge(text, grammars=grammars)
    body = (HELLO if "chat" in path else {"prompt": "Hi", "max_tokens": 50}) | asked
    writes(edge, fit)
    choice = (await edge.post(path, body)).json()["choices"][0]
    assert (choice["message"]["content"] if "chat" in path else choice["text"]) == fit
    assert choice["finish_reason"] == "stop"
    writes(edge, unfit)
    answer = await edge.post(path, body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "answer_unfit"), (
        "never a wrong answer as a right one"
    )


@in_loop
async def test_an_answer_that_does_not_fit_ends_a_stream_with_an_error(text, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    async with serving(edge.app) as url, httpx.AsyncClient(timeout=WAIT_S, trust_env=False) as client:
        body = HELLO | {"stream": True, "response_format": {"type": "json_object"}}
        writing = asyncio.create_task(_writes_something(edge))
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
            events = answer.aiter_lines()
            while "[1]" not in await anext(events):
                continue
            edge.machine.complete(await writing, "stop")
            last = [line async for line in events if line][-1]
    assert answer.status_code == 200
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "answer_unfit"


async def _writes_something(edge):
    await edge.machine.until(lambda: edge.machine.asked)
    request = edge.machine.asked[0].request
    edge.machine.deliver(request, edge.ids("[1]"))
    return request


@in_loop
async def test_what_ended_for_another_reason_is_not_called_unfit(text, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    edge.machine.writes(edge.ids(RECORD[:9]))
    answer = await edge.chat(response_format={"type": "json_object"})
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    writes(edge, RECORD)
    answer = await edge.chat(response_format={"type": "json_object"}, stop="Köln")
    assert answer.json()["choices"][0]["message"]["content"] == '{"city": "'


@in_loop
async def test_keywords_that_cannot_be_enforced_are_refused_only_where_strict(text, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    writes(edge, '"a"')
    schema = {"type": "string", "not": {"const": "b"}}
    assert (await edge.chat(response_format=named(schema))).status_code == 200
    answer = await edge.chat(response_format=named(schema, strict=True))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")
    assert "not" in answer.json()["error"]["message"]


REFUSED = [
    ({"response_format": named({"type": "objec"})}, "response_format", "objec"),
    ({"response_format": named({"type": "string", "pattern": "("})}, "response_format", "regex"),
    ({"response_format": named({"$ref": "http://127.0.0.1:1/x"})}, "response_format", ""),
    ({"response_format": named({"enum": []})}, "response_format", "atisf"),
    ({"response_format": named(False)}, "response_format", ""),
    ({"response_format": named({"enum": ["x" * MAX_GRAMMAR_BYTES]})}, "response_format", str(MAX_GRAMMAR_BYTES)),
    ({"response_format": named(BOMB)}, "response_format", "too long"),
    ({"response_format": named(ENDLESS)}, "response_format", "too long"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ({"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}, "structured_outputs", "together"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "one"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "schema"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "regex"),
    ({"structured_outputs": {"grammar": "start: ("}}, "structured_outputs.grammar", ""),
    ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos", "response_format"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "param", "said"), REFUSED, ids=range(len(REFUSED)))
@in_loop
async def test_a_form_that_cannot_be_had_is_refused_naming_the_field(text, grammars, asked, param, said) -> None:
    edge = make_edge(text, grammars=grammars)
    answer = await edge.chat(**asked)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert said in error["message"] and "start:" not in error["message"].replace("start: (", "")
    assert edge.machine.heard == []
    assert edge.notes.total("pdd_requests_refused_total") == 1


@in_loop
async def test_where_no_worker_can_bind_an_answer_the_request_is_refused_and_counted(text, grammars) -> None:
    edge = make_edge(text)
    for wish in ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"regex": "a"}}):
        answer = await edge.chat(**wish)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_feature")
    assert edge.notes.total("pdd_requests_refused_total", reason="unsupported_feature") == 2
    with pytest.raises(ApiError, match="no worker"):
        await Bounds(grammars, lambda feature: False).admit('start: "a"', "response_format")


@in_loop
async def test_a_verdict_is_kept(text, grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = Bounds(grammars, lambda feature: True)
    await bounds.admit('start: "a" "b"', "x")
    monkeypatch.setattr("services.router.bounds.probe", lambda text: pytest.fail("it was looked at before"))
    await bounds.admit('start: "a" "b"', "x")


@in_loop
async def test_a_grammar_that_many_bring_at_once_is_looked_at_once(text, grammars, monkeypatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr("services.router.bounds.probe", lambda text: looked.append(text) or probe(text))
    bounds = Bounds(grammars, lambda feature: True)
    await asyncio.gather(*(bounds.admit('start: "a" "c"', "x") for _ in range(9)))
    assert len(looked) == 1


@in_loop
async def test_a_grammar_waits_for_others_a_bounded_time(text, grammars, monkeypatch) -> None:
    monkeypatch.setattr("services.router.bounds.PATIENCE_S", 0.05)
    bounds = Bounds(grammars, lambda feature: True)
    slow = asyncio.ensure_future(bounds.admit(grammar(json_value(ENDLESS)), "x"))
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as caught:
        await bounds.admit('start: "c"', "x")
    assert (caught.value.status, caught.value.code) == (429, "overloaded")
    with pytest.raises(ApiError, match="too long"):
        await slow


@in_loop
async def test_a_free_answer_is_not_touched(text, grammars) -> None:
    edge = make_edge(text, grammars=grammars)
    writes(edge, "Hi")
    assert (await edge.chat(response_format={"type": "text"}, structured_outputs={})).status_code == 200
    assert edge.machine.asked[0].sampling.grammar == ""
