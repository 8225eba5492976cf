"""CASES 1 and 11, and what else must be answered at once, over real processes with scripted engines."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pdd.adapters.engine_scripted import Script, reference
from pdd.cli.fleet import Engine
from pdd.core.ids import Role
from pdd.core.sampling import Sampling
from tests.e2e.client import Client, hooks, until
from tests.e2e.conftest import CONTEXT, fleet, serving
from tests.models import prompt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

MAIN_CONTEXT = 512  # MD's limit; RLD and P have CONTEXT


@pytest.fixture(scope="module")
def client(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    wanted = fleet(model, Engine.SCRIPTED, role_settings={Role.MAIN: {"MAX_CONTEXT": str(MAIN_CONTEXT)}})
    wanted = replace(wanted, settings={**wanted.settings, "SCRIPTED_COST": "h100-70b-tp8"})
    yield from serving(wanted, tmp_path_factory.mktemp("scripted"))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_one_token_is_one_token_and_nothing_is_handed_over(client: Client, stream: bool) -> None:
    """CASE 1."""
    until(lambda: not client.held())
    fields = {"prompt": prompt(100, seed=1), "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    before = client.metric("relay_decode-1", "pdd_handovers_total")
    if stream:
        fields |= {"stream": True, "stream_options": {"include_usage": True}}
        text = client.post("/v1/completions", fields, **hooks("P-RLD-MD")).text
        assert text.count('"finish_reason":"length"') == 1
        assert '"completion_tokens":1' in text
        assert text.endswith("data: [DONE]\n\n")
    else:
        answer = client.complete(prompt(100, seed=1), 1, route="P-RLD-MD")
        assert (len(answer.ids), answer.finish, answer.usage["completion_tokens"]) == (1, "length", 1)
        assert answer.speakers == [("prefill", 0, 1)]
    until(lambda: not client.held())
    assert client.metric("relay_decode-1", "pdd_handovers_total") == before


def test_a_prompt_beyond_every_limit_is_refused_at_once_and_holds_nothing(client: Client) -> None:
    """CASE 11, first half."""
    before = time.monotonic()
    answer = client.post("/v1/completions", {"prompt": prompt(CONTEXT + 1), "max_tokens": 8})
    assert time.monotonic() - before < 1
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert str(CONTEXT) in error["message"]
    assert not client.held()


def test_a_request_that_fits_relay_but_not_main_is_served_without_a_hand_over(client: Client, model: Path) -> None:
    """CASE 11, second half: MD's smaller limit neither cuts the answer nor refuses it."""
    ids = prompt(MAIN_CONTEXT, seed=3)
    answer = client.complete(ids, 32)
    assert (len(answer.ids), answer.finish) == (32, "length")
    assert "main_decode" not in {role for role, _, _ in answer.speakers}
    script = Script(vocab=json.loads((model / "config.json").read_text())["vocab_size"])
    assert answer.ids == reference(ids, Sampling(32), len(ids), script)


def test_an_unknown_route_and_a_hidden_hook_are_named(client: Client) -> None:
    answer = client.post("/v1/completions", {"prompt": [5], "max_tokens": 1}, **{"x-pdd-route": "P-XY"})
    assert answer.status_code == 400
    assert "x-pdd-route" in answer.json()["error"]["message"]


def test_a_client_that_leaves_frees_everything(client: Client) -> None:
    until(lambda: not client.held())
    body = {"prompt": prompt(200, seed=4), "max_tokens": 300, "stream": True, "temperature": 0, "ignore_eos": True}
    with client.http.stream("POST", "/v1/completions", json=body, headers=hooks("P-RLD-MD", 64)) as stream:
        lines = stream.iter_lines()
        next(lines)
        until(client.held)  # the gauges do show what is held
    until(lambda: not client.held())
