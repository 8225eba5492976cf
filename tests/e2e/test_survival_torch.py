"""CASE 6 and its kind with real weights: whoever dies, the client gets what one engine alone writes, to the last id."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pdd.cli.fleet import Engine, Line
from pdd.cli.line import change
from tests.e2e.client import Client, until
from tests.e2e.conftest import serving
from tests.e2e.streams import Stream, kill, mend, survivors
from tests.models import alone, prompt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

P, RLD, MD = "prefill-1", "relay_decode-1", "main_decode-1"
SLOW_MBIT, QUICK_MBIT = 4.0, 200.0


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    wanted = survivors(model, Engine.TORCH, line=Line(QUICK_MBIT, 5.0))
    yield from serving(wanted, tmp_path_factory.mktemp("survival-torch"))


@pytest.fixture
def client(shared: Client) -> Client:
    change(shared.deployment.line_control, rate_mbit=QUICK_MBIT)
    mend(shared)
    return shared


def test_main_dies_during_the_transfer_and_relay_completes(client: Client, model: Path) -> None:
    """CASE 6."""
    change(client.deployment.line_control, rate_mbit=SLOW_MBIT)
    on_relay = client.metric("router", "pdd_ended_on_relay_total")
    stream = Stream(client, prompt(600, seed=1), 200, route="P-RLD-MD")
    until(lambda: stream.tokens >= 2)
    kill(client.deployment, MD)
    answer = stream.answer()
    assert answer.ids == alone(model, stream.prompt, 200)
    assert answer.speakers == [("prefill", 0, 1), ("relay_decode", 1, 200)]
    assert client.metric("router", "pdd_ended_on_relay_total") == on_relay + 1


def test_relay_dies_while_it_speaks_and_the_text_goes_on(client: Client, model: Path) -> None:
    change(client.deployment.line_control, rate_mbit=SLOW_MBIT)
    stream = Stream(client, prompt(600, seed=2), 300, route="P-RLD-MD")
    until(lambda: stream.tokens >= 10)
    kill(client.deployment, RLD)
    answer = stream.answer()
    assert answer.ids == alone(model, stream.prompt, 300)
    assert answer.report["epochs"] == 2


def test_prefill_dies_before_the_first_token_and_the_request_begins_again(client: Client, model: Path) -> None:
    stream = Stream(client, prompt(2500, seed=3), 30, route="P-RLD-MD", fence=10)
    until(lambda: client.metric(P, "pdd_held_requests") == 1)
    kill(client.deployment, P)
    answer = stream.answer()
    assert answer.ids == alone(model, stream.prompt, 30)
    assert answer.report["epochs"] == 2
