"""The router's HTTP contract, one answer at a time: shapes, names, and what the machine is asked."""

import asyncio

import httpx
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion

from pdd.core.sampling import Sampling
from services.router.text import ModelText
from services.router.translation import encode
from tests.contract.text_edge import HELLO, in_loop, make_edge
from tests.contract.text_model import BEGIN, CONTEXT, END, PADDED, make_text_folder

JSON, EVENTS = "application/json", "text/event-stream"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return ModelText(make_text_folder(tmp_path_factory.mktemp("model")))


@in_loop
async def test_a_chat_is_answered_in_openais_shape(text):
    edge = make_edge(text)
    edge.machine.writes(edge.ids("The relay"))
    answer = await edge.chat(max_tokens=5)
    parsed = ChatCompletion.model_validate(answer.json(), strict=True)
    choice = parsed.choices[0]
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "The relay", "length")
    asked = edge.machine.asked[0]
    assert asked.ids == edge.ids("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")
    usage = parsed.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(asked.ids), len(edge.ids("The relay")))
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens == 7
    assert len(edge.open_requests) == 0
    assert edge.machine.ended == []


@in_loop
async def test_the_machine_is_asked_for_what_the_client_wants(text):
    edge = make_edge(text)
    edge.machine.writes(edge.ids("a"))
    wishes = {
        "max_completion_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "seed": -1,
        "stop_token_ids": [7], "min_tokens": 2, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.5, "logit_bias": {"5": -100}, "user": "u", "unknown": {"field": 1},
    }  # fmt: skip
    assert (await edge.chat(**wishes, cache_salt="mine")).status_code == 200
    asked = edge.machine.asked[0]
    assert asked.cache_salt == "mine"
    assert asked.sampling == Sampling(
        max_tokens=9, seed=2**63 - 1, temperature=0.5, top_p=0.9, top_k=40, min_p=0.1, stop_token_ids=(END, 7), min_tokens=2,
        presence_penalty=1.0, frequency_penalty=-1.0, repetition_penalty=1.5, logit_bias={5: -100.0},
    )  # fmt: skip


@in_loop
async def test_silence_about_limits_means_the_models_defaults_and_the_whole_context(tmp_path):
    edge = make_edge(ModelText(make_text_folder(tmp_path, temperature=0.6, top_k=20)))
    edge.machine.writes(edge.ids("a"))
    await edge.chat(ignore_eos=True)
    await edge.chat(temperature=0)
    first, second = (asked.sampling for asked in edge.machine.asked)
    assert first.max_tokens == CONTEXT - len(edge.machine.asked[0].ids)
    assert (first.temperature, first.top_k, first.stop_token_ids) == (0.6, 20, ())
    assert second.temperature == 0.0
    assert first.seed != second.seed, "every request without a seed gets its own"


@in_loop
async def test_the_end_token_is_counted_and_not_shown(text):
    edge = make_edge(text)
    plain = edge.ids("<plain>")[0]
    edge.machine.writes([*edge.ids("Hi"), plain], reason="stop", stop_token=plain)
    answer = (await edge.chat(stop_token_ids=[plain])).json()
    assert answer["choices"][0] | {"logprobs": None} == {
        "index": 0, "message": {"role": "assistant", "content": "Hi"}, "logprobs": None, "finish_reason": "stop"
    }  # fmt: skip
    assert answer["usage"]["completion_tokens"] == len(edge.ids("Hi")) + 1


@pytest.mark.parametrize("each", [1, 2, 100])
@pytest.mark.parametrize("closes", [True, False])
@in_loop
async def test_a_stop_string_cuts_the_text_and_ends_the_request(text, each, closes):
    edge = make_edge(text, report_s=0.05)
    edge.machine.closes = closes
    ids = edge.ids("naïve café STOP here, or there")
    edge.machine.writes(ids, each=each)
    answer = (await edge.chat(stop=["or", "é STO"])).json()
    choice = answer["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("naïve caf", "stop")
    assert answer["usage"]["completion_tokens"] < len(ids)
    ended_by_itself = each > len(ids)
    assert edge.machine.ended == ([] if ended_by_itself else [(edge.machine.asked[0].request, "stop")])


@in_loop
async def test_what_was_held_back_for_a_stop_string_is_shown_at_the_end(text):
    edge = make_edge(text)
    edge.machine.writes(edge.ids("go STO"))
    answer = (await edge.chat(stop="STOP")).json()
    assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == ("go STO", "length")


@in_loop
async def test_a_stop_string_counts_only_after_the_least_number_of_tokens(text):
    edge = make_edge(text)
    edge.machine.writes(edge.ids("a.b.c"))
    assert len(edge.ids("a.b.c")) == 5
    answer = (await edge.chat(stop=".", min_tokens=2)).json()
    assert answer["choices"][0]["message"]["content"] == "a.b"


@in_loop
async def test_a_choice_for_each_n_with_seeds_of_its_own(text):
    edge = make_edge(text)
    edge.machine.writes(edge.ids("Hi"))
    answer = ChatCompletion.model_validate((await edge.chat(n=3, seed=10)).json(), strict=True)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [asked.sampling.seed for asked in edge.machine.asked] == [10, 11, 12]
    assert len({asked.request for asked in edge.machine.asked}) == 3
    prompt = len(edge.machine.asked[0].ids)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, 3 * len(edge.ids("Hi")))


@in_loop
async def test_a_refused_choice_ends_its_sisters(text):
    edge = make_edge(text)
    edge.machine.rejects(429, "overloaded", "8 requests are in flight, the limit", retry_after_s=1.2)
    answer = await edge.chat(n=2)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["code"] == "overloaded"
    assert edge.machine.ended == [(edge.machine.asked[1].request, "gone")]
    assert len(edge.open_requests) == 0


@in_loop
async def test_log_probabilities_have_one_entry_a_token(text):
    edge = make_edge(text)
    ids = [*edge.ids("é🔥"), END]
    edge.machine.writes(ids, reason="stop", stop_token=END)
    answer = ChatCompletion.model_validate((await edge.chat(logprobs=True, top_logprobs=1)).json(), strict=True)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == len(ids) == answer.usage.completion_tokens
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == "é🔥<|im_end|>"
    assert [entry.logprob for entry in entries] == [max(-0.5 * token, -9999.0) for token in ids]
    assert all(len(entry.top_logprobs) == 1 for entry in entries)
    assert edge.machine.asked[0].sampling.logprobs == 1


@in_loop
async def test_a_plain_completion_takes_texts_and_ids_and_repeats_them_where_asked(text):
    edge = make_edge(text)
    edge.machine.writes(edge.ids(" end"))
    answer = await edge.post("/v1/completions", {"prompt": ["Go", "On"], "n": 2, "echo": True, "max_tokens": 4})
    parsed = Completion.model_validate(answer.json(), strict=True)
    assert [choice.text for choice in parsed.choices] == ["Go end", "Go end", "On end", "On end"]
    assert [asked.ids for asked in edge.machine.asked] == [
        (BEGIN, *edge.ids(word)) for word in ("Go", "Go", "On", "On")
    ]
    assert parsed.usage.prompt_tokens == len(edge.ids("Go")) + len(edge.ids("On")) + 2
    ids = await edge.post("/v1/completions", {"prompt": [5, 6, 7], "logprobs": 1})
    parsed = Completion.model_validate(ids.json(), strict=True)
    assert edge.machine.asked[-1].ids == (5, 6, 7)
    assert edge.machine.asked[-1].sampling.max_tokens == 16
    logprobs = parsed.choices[0].logprobs
    assert "".join(logprobs.tokens) == " end"
    assert logprobs.text_offset[0] == 0
    assert len(logprobs.top_logprobs) == len(logprobs.token_logprobs) == len(edge.ids(" end"))


@in_loop
async def test_a_clients_request_id_comes_back_and_is_never_used_twice(text):
    edge = make_edge(text)
    edge.machine.writes(edge.ids("a"))
    answers = [await edge.post("/v1/chat/completions", HELLO, x_request_id="mine-1") for _ in range(2)]
    assert [answer.headers["x-request-id"] for answer in answers] == ["mine-1", "mine-1"]
    assert all(answer.json()["id"].startswith("chatcmpl-mine-1-") for answer in answers)
    assert len({asked.request for asked in edge.machine.asked}) == 2
    for bad in ("", "a b", "x" * 129, "-;DROP"):
        answer = await edge.post("/v1/chat/completions", HELLO | {"n": 99}, x_request_id=bad)
        assert answer.headers["x-request-id"] != bad


@in_loop
async def test_the_clients_trace_goes_on_under_its_span_and_a_broken_one_is_replaced(text):
    edge = make_edge(text)
    edge.machine.writes(edge.ids("a"))
    trace, span = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    for given in (f"00-{trace}-{span}-00", f"00-{'0' * 32}-{span}-01", f"00-{trace}-{'0' * 16}-01", "junk"):
        await edge.post("/v1/chat/completions", HELLO, traceparent=given)
    kept, *made = (asked.traceparent.split("-") for asked in edge.machine.asked)
    assert (kept[0], kept[1], kept[3]) == ("00", trace, "00")
    assert kept[2] != span
    assert [asked.parent_span for asked in edge.machine.asked] == [span, "", "", ""]
    assert len({fields[1] for fields in made} - {trace, "0" * 32}) == 3


@in_loop
async def test_each_choice_has_a_root_of_its_own_in_the_one_trace(text):
    edge = make_edge(text)
    edge.machine.writes(edge.ids("a"))
    await edge.post("/v1/chat/completions", HELLO | {"n": 3})
    _, traces, roots, _ = zip(*(asked.traceparent.split("-") for asked in edge.machine.asked), strict=True)
    assert (len(set(traces)), len(set(roots))) == (1, 3)


@in_loop
async def test_test_hooks_and_reports_are_there_only_where_enabled(text):
    closed = make_edge(text)
    closed.machine.writes(closed.ids("a"))
    for name in ("x_pdd_handover_after", "x_pdd_route"):
        answer = await closed.post("/v1/chat/completions", HELLO, **{name: "1"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name.replace("_", "-"))
    assert "pdd" not in (await closed.post("/v1/chat/completions", HELLO, x_pdd_report="1")).json()
    edge = make_edge(text, report=True, test_hooks=True)
    edge.machine.writes(edge.ids("a"))
    wishes = {"x_pdd_handover_after": "3", "x_pdd_route": "P-RLD-MD", "x_pdd_report": "1"}
    answer = await edge.post("/v1/chat/completions", HELLO, **wishes)
    assert answer.json()["pdd"]["hit"] == {"prefill": 7, "main_decode": 9}
    asked = edge.machine.asked[0]
    assert (asked.handover_after, asked.route) == (3, "P-RLD-MD")
    for bad in ({"x_pdd_handover_after": "-1"}, {"x_pdd_handover_after": "9" * 40}, {"x_pdd_route": "P"}):
        assert (await edge.post("/v1/chat/completions", HELLO, **bad)).status_code == 400


@in_loop
async def test_texts_become_ids_and_come_back(text):
    edge = make_edge(text)
    said = "naïve <|im_end|> 🙂"
    answer = (await edge.post("/tokenize", {"prompt": said, "return_token_strs": True})).json()
    assert answer["tokens"] == [BEGIN, *edge.ids(said)]
    assert (answer["count"], answer["max_model_len"]) == (len(answer["tokens"]), CONTEXT)
    assert len(answer["token_strs"]) == answer["count"]
    back = (await edge.post("/detokenize", {"tokens": answer["tokens"]})).json()
    assert back == {"prompt": "<s>" + said}
    chat = (await edge.post("/tokenize", {"messages": HELLO["messages"]})).json()
    edge.machine.writes(edge.ids("a"))
    await edge.chat()
    assert tuple(chat["tokens"]) == edge.machine.asked[0].ids
    padding = [text.vocab_size - 1, text.vocab_size - PADDED, 2**31 - 1]
    assert (await edge.post("/detokenize", {"tokens": padding})).json() == {"prompt": ""}


@in_loop
async def test_a_long_text_is_encoded_while_others_are_served(text):
    encoding = asyncio.ensure_future(encode(text, "a naïve fox " * 30_000, special=False, max_context=10**9))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert len(await encoding) > 200_000
    assert turns > 100, "the tokenizer holds the interpreter's lock"


@in_loop
async def test_what_the_server_says_of_itself(text):
    edge = make_edge(text)
    async with edge.client() as client:
        models = (await client.get("/v1/models")).json()
        assert [(card["id"], card["max_model_len"]) for card in models["data"]] == [("tiny", CONTEXT)]
        assert (await client.get("/v1/models/tiny")).json() == models["data"][0]
        assert (await client.get("/v1/models/other")).json()["error"]["code"] == "model_not_found"
        assert (await client.get("/version")).json().keys() == {"version"}
        assert (await client.get("/metrics")).content == b"# metrics\n"
        for path in ("/live", "/health", "/ready"):
            assert (await client.get(path)).status_code == 200
        edge.health.stage = edge.health.stage.DRAINING
        assert (await client.get("/ready")).status_code == 503
        assert (await client.get("/live")).status_code == 200


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v2/x", 404), ("GET", "/v1/chat/completions", 405)])
@in_loop
async def test_a_wrong_path_is_refused_in_openais_shape(text, method, path, status):
    async with make_edge(text).client() as client:
        answer: httpx.Response = await client.request(method, path)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, "invalid_request_error")


@in_loop
async def test_the_openapi_page_holds_the_bodies_and_what_answers_are_made_of(text):
    async with make_edge(text).client() as client:
        page = (await client.get("/openapi.json")).json()
    schema = page["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["$ref"].removeprefix("#/components/schemas/") in page["components"]["schemas"]
    assert page["components"]["schemas"]["ChatRequest"]["required"] == ["messages"]
    told = {path: list(methods.popitem()[1]["responses"]["200"]["content"]) for path, methods in page["paths"].items()}
    assert sorted(told["/v1/chat/completions"]) == sorted(told["/v1/completions"]) == [JSON, EVENTS]
    assert (told["/metrics"], told["/tokenize"]) == (["text/plain"], [JSON])
