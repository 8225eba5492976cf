"""Streams over a real socket: exact bytes, clients that leave or dawdle, silence, and errors half-way."""

import asyncio
import contextlib
import json
import socket

import httpx
import openai
import pytest

from pdd.core.effects import Reject
from services.router.text import ModelText
from tests.contract.text_edge import HELLO, WAIT_S, in_loop, make_edge, serving
from tests.contract.text_model import END, make_text_folder

SAID = "naïve café 🙂, 東京の天気"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return ModelText(make_text_folder(tmp_path_factory.mktemp("model")))


def events_of(raw: bytes) -> list[dict]:
    """Every event is one `data:` line and a blank one; the last is [DONE]."""
    assert raw.endswith(b"\n\n")
    lines = raw[:-2].split(b"\n\n")
    assert all(line.startswith(b"data: ") and b"\n" not in line for line in lines)
    assert lines[-1] == b"data: [DONE]"
    return [json.loads(line[len(b"data: ") :]) for line in lines[:-1]]


@contextlib.asynccontextmanager
async def streamed(url, **fields):
    async with (
        httpx.AsyncClient(timeout=WAIT_S, trust_env=False) as client,
        client.stream("POST", f"{url}/v1/chat/completions", json=HELLO | {"stream": True} | fields) as answer,
    ):
        yield answer


@pytest.mark.parametrize("options", [None, {"include_usage": False}, {"include_usage": True}])
@pytest.mark.parametrize("each", [1, 2, 100])
@in_loop
async def test_a_stream_is_exact_to_the_byte(text, options, each):
    edge = make_edge(text)
    edge.machine.writes([*edge.ids(SAID), END], reason="stop", stop_token=END, each=each)
    async with serving(edge.app) as url, streamed(url, stream_options=options) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(await answer.aread())
    with_usage = bool(options and options["include_usage"])
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in events}) == 1
    assert events[0]["object"] == "chat.completion.chunk"
    if with_usage:
        last = events.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == len(edge.ids(SAID)) + 1
        assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}
    assert all(("usage" in event) == with_usage and not event.get("usage") for event in events)
    choices = [event["choices"][0] for event in events]
    assert [choice["delta"].get("role") for choice in choices].count("assistant") == 1
    assert choices[0]["delta"]["role"] == "assistant"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == SAID
    assert not any("\ufffd" in choice["delta"].get("content", "") for choice in choices)


@in_loop
async def test_the_openai_client_streams_and_collects_the_same(text):
    edge = make_edge(text)
    edge.machine.writes(edge.ids(SAID))
    async with serving(edge.app) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WAIT_S)
        async with client:
            whole = await client.chat.completions.create(**HELLO, n=2, logprobs=True, top_logprobs=2)
            parts = {0: "", 1: ""}
            entries = {0: 0, 1: 0}
            chunks = await client.chat.completions.create(**HELLO, n=2, logprobs=True, stream=True)
            async for chunk in chunks:
                for choice in chunk.choices:
                    parts[choice.index] += choice.delta.content or ""
                    entries[choice.index] += len(choice.logprobs.content) if choice.logprobs else 0
            plain = ""
            async for chunk in await client.completions.create(model="tiny", prompt="Go", echo=True, stream=True):
                plain += chunk.choices[0].text
            assert [card.id async for card in client.models.list()] == ["tiny"]
    assert [choice.message.content for choice in whole.choices] == [SAID, SAID] == list(parts.values())
    assert entries == {0: len(edge.ids(SAID)), 1: len(edge.ids(SAID))}
    assert plain == f"Go{SAID}"


@in_loop
async def test_a_stop_string_across_deliveries_never_shows(text):
    edge = make_edge(text)
    edge.machine.writes(edge.ids("go ST and STOP here"))
    async with serving(edge.app) as url, streamed(url, stop="STOP", stream_options={"include_usage": True}) as answer:
        events = events_of(await answer.aread())
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1]) == "go ST and "
    assert events[-2]["choices"][0]["finish_reason"] == "stop"
    assert events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 7}
    assert edge.machine.ended == [(edge.machine.asked[0].request, "stop")]


@in_loop
async def test_what_is_delivered_together_leaves_in_one_event(text):
    edge = make_edge(text)
    async with serving(edge.app) as url:
        asking = asyncio.create_task(_read(url))
        await edge.machine.until(lambda: edge.machine.asked)
        request = edge.machine.asked[0].request
        ids = edge.ids(SAID)
        for i, token in enumerate(ids):
            edge.machine.deliver(request, [token], i)
        edge.machine.complete(request)
        events = events_of(await asking)
    assert [event["choices"][0]["delta"] for event in events] == [
        {"role": "assistant", "content": ""},
        {"content": SAID},
        {},
    ]


async def _read(url, **fields):
    async with streamed(url, **fields) as answer:
        return await answer.aread()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("spoken", [0, 3])
@pytest.mark.parametrize("n", [1, 2])
@in_loop
async def test_a_client_that_leaves_is_reported_at_once(text, stream, spoken, n):
    edge = make_edge(text)
    async with serving(edge.app) as url:
        asking = asyncio.create_task(_read(url, stream=stream, n=n))
        await edge.machine.until(lambda: len(edge.machine.asked) == n)
        requests = [asked.request for asked in edge.machine.asked]
        for request in requests:
            edge.machine.deliver(request, edge.ids(SAID)[:spoken])
        asking.cancel()
        await edge.machine.until(lambda: len(edge.machine.ended) == n)
        assert edge.machine.ended == [(request, "gone") for request in requests]
        assert len(edge.open_requests) == 0
        for request in requests:
            edge.machine.deliver(request, edge.ids(SAID), spoken)
            edge.machine.complete(request)


@in_loop
async def test_a_client_that_leaves_while_its_stop_is_settled_is_not_reported_twice(text):
    edge = make_edge(text)
    edge.machine.closes = False
    async with serving(edge.app) as url:
        asking = asyncio.create_task(_read(url, stop="T"))
        await edge.machine.until(lambda: edge.machine.asked)
        edge.machine.deliver(edge.machine.asked[0].request, edge.ids("go ST"))
        await edge.machine.until(lambda: edge.machine.ended)
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
    assert [reason for _, reason in edge.machine.ended] == ["stop"]
    assert len(edge.open_requests) == 0


def dawdler(url) -> socket.socket:
    """A client that asks and reads nothing."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(HELLO | {"stream": True, "logprobs": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    client.sendall(head + body)
    return client


@pytest.mark.parametrize(
    "bound", [{"stall_s": 0.1, "max_unread_tokens": 10**9}, {"max_unread_tokens": 1000}], ids=["time", "tokens"]
)
@in_loop
async def test_a_client_that_does_not_read_is_gone_and_its_socket_given_back(text, bound):
    edge = make_edge(text, **bound)
    async with serving(edge.app) as url:
        client = await asyncio.to_thread(dawdler, url)
        try:
            await edge.machine.until(lambda: edge.machine.asked)
            request = edge.machine.asked[0].request
            _feed(edge, request, edge.ids(SAID) * 8)
            await edge.machine.until(lambda: edge.machine.ended)
            assert edge.machine.ended == [(request, "gone")]
            assert len(edge.open_requests) == 0
            await asyncio.wait_for(edge.app.state.lost.wait(), WAIT_S)
        finally:
            client.close()


def _feed(edge, request, ids, written=0) -> None:
    """A delivery in each turn of the loop, until the machine is told to stop."""
    if not edge.machine.ended:
        edge.machine.deliver(request, ids, written)
        asyncio.get_running_loop().call_soon(_feed, edge, request, ids, written + len(ids))


@in_loop
async def test_silence_is_bridged_by_comments_and_a_late_refusal_is_an_event(text):
    edge = make_edge(text, keep_alive_s=0.02)
    async with serving(edge.app) as url, streamed(url) as answer:
        assert answer.status_code == 200
        raw = b""
        async for part in answer.aiter_raw():
            raw += part
            if raw.count(b": keep-alive\n\n") == 2:
                edge.machine.say(Reject(edge.machine.asked[0].request, 503, "recovery_exhausted", "nobody is left"))
    event = raw.rsplit(b": keep-alive\n\n", 1)[1]
    assert raw.startswith(b": keep-alive\n\n")
    assert event.startswith(b"data: ")
    assert json.loads(event[len(b"data: ") :])["error"]["code"] == "recovery_exhausted"
    assert b"[DONE]" not in raw


@in_loop
async def test_an_error_half_way_reaches_the_openai_client_as_an_error(text):
    edge = make_edge(text)
    async with serving(edge.app) as url:
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=WAIT_S)
        async with client:
            asking = asyncio.create_task(client.chat.completions.create(**HELLO, stream=True))
            await edge.machine.until(lambda: edge.machine.asked)
            request = edge.machine.asked[0].request
            edge.machine.deliver(request, edge.ids("Hi"))
            heard = ""
            with pytest.raises(openai.APIError, match="nobody is left"):
                async for chunk in await asking:
                    heard += chunk.choices[0].delta.content or ""
                    if heard == "Hi":
                        edge.machine.say(Reject(request, 503, "recovery_exhausted", "nobody is left"))
    assert heard == "Hi"
    assert edge.machine.ended == []


@in_loop
async def test_a_report_rides_on_each_choices_last_chunk(text):
    edge = make_edge(text, report=True)
    edge.machine.writes(edge.ids("Hi"))
    async with serving(edge.app) as url, httpx.AsyncClient(trust_env=False) as client:
        headers = {"x-pdd-report": "1"}
        answer = await client.post(f"{url}/v1/chat/completions", json=HELLO | {"stream": True, "n": 2}, headers=headers)
    events = events_of(answer.content)
    reported = [event for event in events if "pdd" in event]
    assert [event["choices"][0]["finish_reason"] for event in reported] == ["length", "length"]
    assert reported[0]["pdd"]["route"] == "P-RLD-MD"
