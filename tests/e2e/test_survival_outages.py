"""CASES 8 and 12 over real processes: the line cut, stalled and slow, a broker or Redis away, workers that were there first.

Time-outs are half the defaults and less, so most outages are shorter than the cases name: still longer than any wait they must outlast.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdd.cli.fleet import Line
from pdd.cli.line import change
from tests.e2e.client import Client, until
from tests.e2e.conftest import serving
from tests.e2e.streams import QUICK, Stream, alive, baseline, counted, kill, mend, survivors, workers
from tests.models import prompt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

P, RLD, MD, INDEX, REDIS = "prefill-1", "relay_decode-1", "main_decode-1", "prefix_index", "redis"
SLOW_MBIT, QUICK_MBIT = 4.0, 200.0
DEFAULT_DELAY_MS = 5.0
OUTAGE_S = 10.0
TOKEN_BYTES = 2048  # of the tiny model's KV


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    wanted = survivors(model, line=Line(QUICK_MBIT, DEFAULT_DELAY_MS))
    yield from serving(wanted, tmp_path_factory.mktemp("outages"))


@pytest.fixture
def client(shared: Client) -> Iterator[Client]:
    """The deployment, whole; afterwards it must become so again by itself, with nothing held."""
    yield shared
    change(shared.deployment.line_control, rate_mbit=QUICK_MBIT, delay_ms=DEFAULT_DELAY_MS, stall=False, cut=False)
    mend(shared)


def shape(client: Client, **told: float | bool) -> None:
    change(client.deployment.line_control, **told)  # type: ignore[arg-type]


def crossed(client: Client) -> float:
    return counted(client, P, "pdd_kv_transfer_seconds_count", way="wan")


def served_by_all(client: Client, seed: int) -> None:
    """New requests are right, and soon one takes the whole way, without anybody's help."""
    until(lambda: alive(client, P, RLD, MD), seconds=30)
    seeds = iter(range(seed * 100, seed * 100 + 100))

    def took_the_whole_way() -> bool:
        answer = Stream(client, prompt(80, seed=next(seeds)), 30, route="P-RLD-MD", fence=10).right()
        return answer.speakers == [("prefill", 0, 1), ("relay_decode", 1, 10), ("main_decode", 10, 30)]

    until(took_the_whole_way, seconds=30)


@pytest.mark.parametrize("trouble", ["cut", "stall"])
def test_relay_goes_on_while_the_line_is_away_and_main_speaks_again_afterwards(client: Client, trouble: str) -> None:
    shape(client, rate_mbit=SLOW_MBIT)
    stream = Stream(client, prompt(600, seed=1), 400, route="P-RLD-MD")
    until(lambda: stream.tokens >= 2)
    before = crossed(client)
    shape(client, **{trouble: True})
    until(lambda: not workers(client)[MD]["alive"])  # it is noticed
    begun = stream.tokens
    until(lambda: stream.tokens > begun + 10)  # and the client is not kept waiting
    answer = stream.right()
    assert crossed(client) == before
    assert answer.speakers[-1][0] == "relay_decode"
    shape(client, **{trouble: False}, rate_mbit=QUICK_MBIT)
    served_by_all(client, 10)


def test_a_line_that_comes_back_soon_costs_no_plan(client: Client) -> None:
    shape(client, rate_mbit=SLOW_MBIT)
    stream = Stream(client, prompt(500, seed=2), 300, route="P-RLD-MD")
    until(lambda: stream.tokens >= 2)
    shape(client, stall=True)
    begun = stream.tokens
    until(lambda: stream.tokens > begun + 5)  # much less than makes anybody suspect anybody
    shape(client, stall=False)
    answer = stream.right()
    assert answer.report["epochs"] == 1
    assert answer.speakers[-1][0] == "main_decode"


def test_connections_cut_while_nothing_runs_are_not_missed(client: Client) -> None:
    served_by_all(client, 30)
    shape(client, cut=True)
    until(lambda: not workers(client)[MD]["alive"])
    shape(client, cut=False)
    served_by_all(client, 31)


def test_over_a_slow_line_relay_speaks_while_kv_crosses(client: Client) -> None:
    """CASE 8: 1 Mbit/s and 50 ms. The first tokens do not wait for the line; MD takes over when its KV is there."""
    shape(client, rate_mbit=1.0, delay_ms=25.0)
    crossing_s = 200 * TOKEN_BYTES * 8 / 1e6
    before = crossed(client)
    stream = Stream(client, prompt(200, seed=4), 450, route="P-RLD-MD")
    until(lambda: stream.tokens >= 20)
    assert crossed(client) == before
    assert stream.at[19] - stream.began < crossing_s
    answer = stream.right()
    assert crossed(client) == before + 1
    roles = [role for role, _, _ in answer.speakers]
    assert roles == ["prefill", "relay_decode", "main_decode"]
    assert answer.report["transfers"][-1]["seconds"] > 20 * 0.012  # it was under way as long as 20 outputs take


def test_over_a_slow_line_a_short_answer_ends_on_relay_by_rule(client: Client) -> None:
    shape(client, rate_mbit=1.0, delay_ms=25.0)
    ended = client.metric("router", "pdd_ended_on_relay_total")
    answer = Stream(client, prompt(700, seed=5), 20, route="P-RLD-MD").right()
    assert answer.speakers == [("prefill", 0, 1), ("relay_decode", 1, 20)]
    assert client.metric("router", "pdd_ended_on_relay_total") == ended + 1


@pytest.mark.parametrize("broker", ["nats-a", "nats-b"])
def test_a_broker_that_dies_and_comes_back_costs_time_or_a_clean_error(client: Client, broker: str) -> None:
    """CASE 12, first third."""
    expired = client.metric(MD, "pdd_leases_expired_total")
    running = [Stream(client, prompt(100, seed=60 + i), 250, route="P-RLD-MD", fence=20 + 60 * i) for i in range(2)]
    until(lambda: all(stream.tokens >= 5 for stream in running))
    kill(client.deployment, broker)
    dead = (P, RLD, MD) if broker == "nats-a" else (MD,)
    until(lambda: not any(workers(client)[name]["alive"] for name in dead))
    until(lambda: client.metric(MD, "pdd_leases_expired_total") > expired)  # away for longer than any lease
    asked_at = time.monotonic()
    new = Stream(client, prompt(100, seed=62), 20)
    if broker == "nats-a":
        until(lambda: new.ended)
        assert time.monotonic() - asked_at < 2
        assert (new.status, new.error["code"]) == (503, "no_worker")
    else:
        new.right()  # site A alone
    client.deployment.begin(broker)
    for stream in running:
        until(lambda stream=stream: stream.ended, seconds=float(QUICK["GIVE_UP_S"]) + 10)  # type: ignore[misc]
        if stream.error:
            assert stream.error["code"] == "recovery_exhausted"
        else:
            stream.right()
    served_by_all(client, 63)


def test_without_redis_requests_are_served_and_hits_come_back_with_it(client: Client) -> None:
    """CASE 12, second third."""
    ids = prompt(256, seed=70)
    first = Stream(client, ids, 20).right()
    running = Stream(client, prompt(100, seed=71), 100, route="P-RLD-MD", fence=50)
    until(lambda: running.tokens >= 5)
    kill(client.deployment, REDIS)
    running.right()
    Stream(client, prompt(150, seed=72), 20).right()
    client.deployment.begin(REDIS)

    def predicted() -> bool:
        """The router is told of the hit: of the prompt's time at P little is left."""
        answer = Stream(client, ids + first.ids, 2, route="P-MD").right()
        return answer.hit("prefill") >= 192 and bool(counted(client, INDEX, "pdd_index_lookups_total", outcome="hit"))

    found = counted(client, INDEX, "pdd_index_lookups_total", outcome="hit")
    until(lambda: predicted() and counted(client, INDEX, "pdd_index_lookups_total", outcome="hit") > found, 15)


def test_workers_that_start_before_their_broker_serve_when_it_comes(client: Client) -> None:
    """CASE 12, last third."""
    for name in ("nats-a", "nats-b", P, RLD, MD, INDEX):
        kill(client.deployment, name)
    for name in (P, RLD, MD, INDEX):
        client.deployment.launch(name)
    until(lambda: not alive(client, P))
    client.deployment.begin("nats-b")
    client.deployment.begin("nats-a")
    served_by_all(client, 80)


@pytest.fixture
def patient(model: Path, tmp_path: Path) -> Iterator[Client]:
    """With the default time-outs."""
    yield from serving(survivors(model, time_outs={}), tmp_path)


def test_broker_and_redis_away_for_ten_seconds_cost_no_token_with_the_default_time_outs(patient: Client) -> None:
    """Longer than a lease (9 s), so that workers have given everything up; shorter than the router gives up (45 s)."""
    streams = [Stream(patient, prompt(100, seed=95 + i), 300, route="P-RLD-MD", fence=20 + 200 * i) for i in (0, 1)]
    until(lambda: all(stream.tokens >= 25 for stream in streams))
    for name in ("nats-a", REDIS):
        kill(patient.deployment, name)
    back_at = time.monotonic() + OUTAGE_S
    until(lambda: time.monotonic() > back_at, seconds=OUTAGE_S + 1)
    assert not any(workers(patient)[name]["alive"] for name in (P, RLD, MD))
    for name in (REDIS, "nats-a"):
        patient.deployment.begin(name)
    assert all(stream.right().report["epochs"] > 1 for stream in streams)
    served_by_all(patient, 97)
    mend(patient)


def test_the_client_whose_request_is_lost_with_everybody_is_told_so(client: Client) -> None:
    """Law 7: no token and nobody to plan with ends in an error within `give_up_s`, not in silence."""
    stream = Stream(client, prompt(100, seed=90), 400, route="P-RLD-MD", fence=200)
    until(lambda: stream.tokens >= 5)
    for name in (P, RLD, MD):
        kill(client.deployment, name)
    until(lambda: stream.ended, seconds=float(QUICK["GIVE_UP_S"]) + 10)
    assert stream.error["code"] == "recovery_exhausted"
    assert 5 <= stream.tokens < len(baseline(stream.prompt, 400))
