"""Two P behind one line over real processes: the router leases the line to both, by NATS; without it each keeps to an equal share."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdd.cli.fleet import Line
from pdd.cli.main import app
from tests.e2e.client import Client, until
from tests.e2e.conftest import serving
from tests.e2e.streams import Stream, alive, counted, kill, mend, survivors
from tests.models import prompt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

SENDERS = ("prefill-1", "prefill-2")
RATE_MBIT, DELAY_MS = 20.0, 10.0
LINE_BYTES_PER_S = RATE_MBIT * 125_000
TOKEN_BYTES = 2048  # of the tiny model's KV
SETTINGS = {
    "SCRIPTED_COST": "instant",  # only the line takes time
    "CHUNK_TOKENS": "512",
    "MAX_CONTEXT": "8192",
    "LINE__PACKED": "false",
}


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    wanted = survivors(model, settings=SETTINGS, prefill=2, line=Line(RATE_MBIT, DELAY_MS))
    yield from serving(wanted, tmp_path_factory.mktemp("leases"))


@pytest.fixture
def client(shared: Client) -> Iterator[Client]:
    """Both P have measured the line; afterwards nobody holds anything."""
    while not all(of_line(shared, name, "capacity") for name in SENDERS):
        for stream in [send(shared, 1500, seed) for seed in next_seeds(2)]:
            stream.right()
    yield shared
    mend(shared)


seeds = iter(range(10_000))


def next_seeds(count: int) -> list[int]:
    return [next(seeds) for _ in range(count)]


def send(client: Client, tokens: int, seed: int) -> Stream:
    """All of a new prompt's KV crosses the line."""
    return Stream(client, prompt(tokens, seed=seed), 2, route="P-MD")


def of_line(client: Client, part: str, what: str) -> float:
    return counted(client, part, f"pdd_line_{what}_bytes_per_second", site="b")


def crossing_s(stream: Stream) -> float:
    """Until MD speaks: it has all KV then."""
    stream.right()
    return stream.at[1] - stream.began


def both_send(client: Client, *tokens: int) -> list[Stream]:
    """Large transfers of both P at the same time."""
    streams = [send(client, count, seed) for count, seed in zip(tokens, next_seeds(len(tokens)), strict=True)]
    until(lambda: all(counted(client, name, "pdd_line_queued_bytes", site="b") for name in SENDERS))
    return streams


def paces(client: Client) -> tuple[float, float]:
    """What bulk of the slower and of the faster P is held to, bytes a second; 0: to nothing."""
    low, high = sorted(of_line(client, name, "pace") for name in SENDERS)
    return low, high


def test_the_p_with_the_shorter_transfer_has_most_of_the_line(client: Client) -> None:
    leases = client.metric("router", "pdd_line_leases_total")
    long, short = both_send(client, 7000, 3500)
    until(lambda: 0 < 4 * paces(client)[0] < paces(client)[1])
    assert client.metric("router", "pdd_line_leases_total") > leases
    for stream in (short, long):
        stream.right()
    assert short.at[1] < long.at[1]


def test_small_transfers_of_one_p_do_not_wait_for_the_bulk_of_another(client: Client) -> None:
    """What is on the line already is in front of them, so a slow line's seconds are no measure: bench.line has that."""
    bulk = send(client, 8000, next(seeds))
    until(lambda: any(counted(client, name, "pdd_line_queued_bytes", site="b") for name in SENDERS))
    beside = [crossing_s(send(client, 100, seed)) for seed in next_seeds(5)]
    assert not bulk.ended, "the bulk was over too soon to show anything"
    bulk.right()
    assert statistics.median(beside) < 0.25 * 8000 * TOKEN_BYTES / LINE_BYTES_PER_S


def test_pdd_link_shows_the_way_of_each_p_while_it_sends(client: Client) -> None:
    both_send(client, 4000, 4000)
    until(lambda: all(of_line(client, name, "pace") for name in SENDERS))
    run_dir = str(client.deployment.run.path)
    ways = json.loads(CliRunner().invoke(app, ["link", "--json", "--run-dir", run_dir]).stdout)["ways"]
    far = {way["sender"]: way for way in ways if way["site"] == "b"}
    assert far.keys() == set(SENDERS)
    for way in far.values():
        assert way["streams"] >= 1 and way["queued_bytes"] > 0
        assert way["pace_bytes_per_s"] > 0  # a share of what was measured, which a proxy in user space can overstate
        assert way["rtt_s"] > DELAY_MS / 1000 and way["capacity_bytes_per_s"] > 0.5 * LINE_BYTES_PER_S
    shown = CliRunner().invoke(app, ["link", "--once", "--run-dir", run_dir], env={"COLUMNS": "100"})
    assert shown.exit_code == 0 and all(f"{name} > b" in shown.stdout for name in SENDERS)


def test_when_the_router_dies_each_p_falls_back_to_an_equal_share(client: Client) -> None:
    both_send(client, 8000, 8000)
    until(lambda: 0 < 4 * paces(client)[0] < paces(client)[1])
    kill(client.deployment, "router")
    until(lambda: 0 < paces(client)[1] < 1.25 * paces(client)[0], seconds=3)
    client.deployment.begin("router")
    until(lambda: alive(client, *SENDERS))
