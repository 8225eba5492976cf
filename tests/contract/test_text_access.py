"""API keys, their bounds, and browsers: who may ask, and what the others are told."""

import asyncio

import openai
import pytest

from pdd.core.errors import SettingsError
from services.router.access import digest, read_keys
from services.router.text import ModelText
from tests.contract.text_edge import HELLO, WAIT_S, in_loop, make_edge, serving
from tests.contract.text_model import make_text_folder

CHAT = "/v1/chat/completions"
KEYS = {digest("good"): 0, digest("narrow"): 2}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> ModelText:
    return ModelText(make_text_folder(tmp_path_factory.mktemp("model")))


@pytest.mark.parametrize(
    "given", [{}, {"authorization": "Bearer bad"}, {"authorization": "Basic good"}, {"authorization": "good"}]
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/v1/nothing", "/tokenize", "/detokenize"])
@in_loop
async def test_without_a_key_nothing_is_told(text: ModelText, path: str, given: dict[str, str]) -> None:
    edge = make_edge(text, keys=KEYS)
    answer = await edge.post(path, HELLO, **given)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (401, "invalid_api_key", "invalid_request_error")
    assert error.keys() == {"message", "type", "param", "code"}
    assert answer.headers["www-authenticate"] == "Bearer" and answer.headers["x-request-id"]
    assert edge.machine.heard == []
    assert edge.notes.total("pdd_requests_refused_total", reason="invalid_api_key") == 1


@in_loop
async def test_with_a_key_all_is_as_without_keys(text: ModelText) -> None:
    edge = make_edge(text, keys=KEYS)
    edge.machine.writes(edge.ids("Hi"))
    assert (await edge.post(CHAT, HELLO, authorization="Bearer good")).status_code == 200
    assert (await edge.post("/tokenize", {"prompt": "a"}, authorization="bearer good")).status_code == 200


@in_loop
async def test_how_the_server_is_needs_no_key(text: ModelText) -> None:
    async with make_edge(text, keys=KEYS).client() as client:
        for path in ("/live", "/health", "/ready", "/metrics", "/version", "/openapi.json"):
            assert (await client.get(path)).status_code == 200


@in_loop
async def test_the_openai_client_names_a_wrong_key_as_such(text: ModelText) -> None:
    edge = make_edge(text, keys=KEYS)
    async with serving(edge.app) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="bad", max_retries=0, timeout=WAIT_S) as client:
            with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
                await client.models.list()


@pytest.mark.parametrize("stream", [True, False])
@in_loop
async def test_a_key_has_no_more_requests_at_once_than_it_may(text: ModelText, stream: bool) -> None:
    edge = make_edge(text, keys=KEYS)
    wishes = HELLO | {"stream": stream}
    running = [asyncio.create_task(edge.post(CHAT, wishes, authorization="Bearer narrow")) for _ in range(2)]
    await edge.machine.until(lambda: len(edge.machine.asked) == 2)
    refused = await edge.post(CHAT, wishes, authorization="Bearer narrow")
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert "2 requests" in error["message"] and refused.headers["retry-after"] == "1"
    others = asyncio.create_task(edge.post(CHAT, wishes, authorization="Bearer good"))
    await edge.machine.until(lambda: len(edge.machine.asked) == 3)
    for asked in edge.machine.asked:
        edge.machine.complete(asked.request)
    assert [answer.status_code for answer in await asyncio.gather(*running, others)] == [200, 200, 200]
    edge.machine.writes(edge.ids("Hi"))
    assert (await edge.post(CHAT, wishes, authorization="Bearer narrow")).status_code == 200


@in_loop
async def test_a_client_that_leaves_gives_its_place_back(text: ModelText) -> None:
    edge = make_edge(text, keys={digest("narrow"): 1})
    async with serving(edge.app) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="narrow", max_retries=0, timeout=WAIT_S) as client:
            asking = asyncio.create_task(client.chat.completions.create(**HELLO))
            await edge.machine.until(lambda: edge.machine.asked)
            asking.cancel()
            await edge.machine.until(lambda: edge.machine.ended)
            edge.machine.writes(edge.ids("Hi"))
            await client.chat.completions.create(**HELLO)


# -- where keys come from ---------------------------------------------------------------------------------------------


def test_keys_come_from_a_list_and_a_file(tmp_path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none\ntwo 7  # busy\n\n")
    assert read_keys(" three, four,", file, 5) == {
        digest("three"): 5, digest("four"): 5, digest("one"): 5, digest("two"): 7
    }  # fmt: skip
    assert read_keys("", None, 5) == {}


@pytest.mark.parametrize("content", ["one two\n", "one 2 3\n", "# none\n", "\n"])
def test_a_file_that_is_wrong_is_not_taken_for_an_open_door(tmp_path, content: str) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(SettingsError, match="keys"):
        read_keys("", file, 0)
    with pytest.raises(SettingsError):
        read_keys("", tmp_path / "missing", 0)


# -- browsers ---------------------------------------------------------------------------------------------------------

PREFLIGHT = {
    "origin": "https://page",
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization",
}


@in_loop
async def test_no_page_may_ask_unless_it_is_allowed(text: ModelText) -> None:
    closed, opened = make_edge(text), make_edge(text, cors_origins=("https://page",), keys=KEYS)
    async with closed.client() as client:
        assert "access-control-allow-origin" not in (await client.options(CHAT, headers=PREFLIGHT)).headers
        assert (
            "access-control-allow-origin"
            not in (await client.get("/v1/models", headers={"origin": "https://page"})).headers
        )
    async with opened.client() as client:
        asked = await client.options(CHAT, headers=PREFLIGHT)
        assert (asked.status_code, asked.headers["access-control-allow-origin"]) == (200, "https://page")
        refused = await client.post(CHAT, json=HELLO, headers={"origin": "https://page"})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://page")
        other = await client.post(CHAT, json=HELLO, headers={"origin": "https://other"})
        assert "access-control-allow-origin" not in other.headers
