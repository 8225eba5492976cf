"""CASES 13 and 14, joining and draining, over a fleet of three P and three MD: load spreads, lies of the index cost nothing, and
workers come and go while streams run.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest
from redis import Redis

from pdd.adapters.model_files import fingerprint
from pdd.cli.deployment import Deployment
from pdd.cli.fleet import Line
from pdd.cli.run_directory import RunDirectory
from pdd.core.blocks import block_hashes
from pdd.core.ids import Role
from tests.e2e.client import Client, until
from tests.e2e.streams import Stream, alive, counted, mend, survivors, workers
from tests.models import prompt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

PREFILLS, MAINS = [f"prefill-{i}" for i in (1, 2, 3)], [f"main_decode-{i}" for i in (1, 2, 3)]
LATER = ("prefill-3", "main_decode-3")
INDEX = "prefix_index"
PAGES = 384  # 6144 tokens: a pool that a test can fill
DRAIN_S = 20


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    settings = {"PAGES": str(PAGES), "CHUNK_TOKENS": "64", "MAX_SEQUENCES": "64", "DRAIN_S": str(DRAIN_S)}
    wanted = survivors(model, line=Line(200.0, 5.0), settings=settings, prefill=3, main=3)
    with Deployment(wanted, RunDirectory(tmp_path_factory.mktemp("fleet")), LATER) as deployment:
        client = Client(deployment)
        yield client
        client.close()


@pytest.fixture
def client(shared: Client) -> Iterator[Client]:
    """At least two of each; whoever ended has begun again."""
    mend(shared)
    yield shared
    mend(shared)


@pytest.fixture
def three(client: Client) -> Client:
    """All three of each."""
    missing = set(LATER) - {record.name for record in client.deployment.run.running()}
    for name in sorted(missing):
        client.deployment.begin(name)
    until(lambda: alive(client, *PREFILLS, *MAINS))
    return client


def test_workers_that_join_under_load_get_work_within_seconds(client: Client) -> None:
    running = [Stream(client, prompt(200, seed=i), 400, route="P-RLD-MD", fence=40) for i in range(6)]
    until(lambda: all(stream.tokens >= 2 for stream in running))
    for name in LATER:
        client.deployment.begin(name)
    seeds = iter(range(100, 1000))

    def met() -> set[str]:
        """Who serves the next few."""
        wave = [Stream(client, prompt(300, seed=next(seeds)), 4) for _ in range(6)]
        return {name for stream in wave for name in stream.right().report["workers"].values()}

    until(lambda: met() >= set(LATER), seconds=10)
    for stream in running:
        assert stream.right().report["epochs"] == 1


@pytest.mark.parametrize("leaving", ["prefill-1", "relay_decode-1", "main_decode-1"])
def test_a_worker_asked_to_end_finishes_its_streams_and_takes_no_new_one(client: Client, leaving: str) -> None:
    running = [Stream(client, prompt(200, seed=1000 + i), 250, route="P-RLD-MD", fence=100) for i in range(6)]
    until(lambda: all(stream.tokens >= 2 for stream in running))
    deployment = client.deployment
    pid, child = deployment.record(leaving).pid, deployment.record(leaving)
    os.kill(pid, signal.SIGTERM)
    until(lambda: workers(client)[leaving]["draining"] or child in deployment.ended(), seconds=5)
    new = [Stream(client, prompt(120, seed=1100 + i), 20) for i in range(4)]
    for stream in new:
        assert leaving not in stream.right().report["workers"].values()
    served = [stream.right() for stream in running]
    assert any(leaving in answer.report["workers"].values() for answer in served)
    assert all(answer.report["epochs"] == 1 for answer in served)
    until(lambda: child in deployment.ended(), seconds=DRAIN_S)
    assert "stopped" in Path(child.log).read_text().splitlines()[-1]


def test_a_router_asked_to_end_finishes_its_streams(client: Client) -> None:
    running = [Stream(client, prompt(100, seed=1200 + i), 150, route="P-RLD-MD", fence=30) for i in range(4)]
    until(lambda: all(stream.tokens >= 2 for stream in running))
    record = client.deployment.record("router")
    os.kill(record.pid, signal.SIGTERM)
    until(lambda: "draining" in Path(record.log).read_text())
    refused = Stream(client, prompt(100, seed=1210), 20)
    until(lambda: refused.ended)
    assert (refused.status, refused.error["code"]) == (503, "draining")
    for stream in running:
        stream.right()
    until(lambda: record in client.deployment.ended())


def loads(streams: list[Stream], role: Role) -> Counter[str]:
    return Counter(stream.right().report["workers"][role.value] for stream in streams)


def test_one_hot_prefix_does_not_pile_up(three: Client) -> None:
    """CASE 14, first half. What each adds to the prefix is work enough to make a queue, which the holder of the prefix is then
    not worth waiting in.
    """
    hot = prompt(512, seed=2000)
    Stream(three, hot, 2, route="P-MD").right()
    streams = [Stream(three, hot + prompt(192, seed=2001 + i), 8, route="P-MD") for i in range(64)]
    for role in (Role.PREFILL, Role.MAIN):
        count = loads(streams, role)
        assert len(count) == 3
        assert max(count.values()) <= 3 * min(count.values()), count
    assert any(stream.right().hit("prefill") >= 512 for stream in streams)
    assert any(stream.right().hit("main_decode") >= 512 for stream in streams)


def test_cold_requests_at_once_spread_evenly(three: Client) -> None:
    """CASE 14, second half."""
    streams = [Stream(three, prompt(100, seed=2100 + i), 8, route="P-MD") for i in range(32)]
    for role in (Role.PREFILL, Role.MAIN):
        count = loads(streams, role)
        assert len(count) == 3
        assert max(count.values()) <= 2 * min(count.values()), count


class Claims:
    """What Redis says who holds."""

    def __init__(self, client: Client, model: Path) -> None:
        port = client.deployment.record("redis").ports["redis"]
        self.redis = Redis(port=port)
        self.prefix = f"pdd:{{{blake2b(b'pdd', digest_size=8).hexdigest()}}}:".encode()
        self.fingerprint = fingerprint(model)

    def keys(self, ids: list[int]) -> list[bytes]:
        return [self.prefix + b"b:" + block for block in block_hashes(tuple(ids), self.fingerprint, "")]

    def held(self, ids: list[int]) -> int:
        """Claims on any whole block of `ids`, by anybody."""
        return sum(self.redis.bitcount(key) for key in self.keys(ids))

    def lie(self, ids: list[int], name: str) -> None:
        """As if `name` held all of them."""
        slot = int(self.redis.hget(self.prefix + b"holders", name).split()[0])
        for key in self.keys(ids):
            self.redis.setbit(key, slot, 1)


@pytest.fixture
def claims(client: Client, model: Path) -> Iterator[Claims]:
    claims = Claims(client, model)
    yield claims
    claims.redis.close()


def test_a_holder_that_the_index_invents_costs_only_time(client: Client, claims: Claims) -> None:
    """CASE 13: the ticket is the truth."""
    ids = prompt(512, seed=3000)
    claims.lie(ids, "prefill-2")
    claims.lie(ids, "main_decode-2")
    answer = Stream(client, ids, 20, route="P-MD").right()
    assert answer.report["workers"] == {"prefill": "prefill-2", "main_decode": "main_decode-2"}  # it was believed
    assert answer.report["hit"] == {"prefill": 0, "main_decode": 0}


def test_claims_leave_with_the_blocks_that_are_evicted(client: Client, claims: Claims) -> None:
    """CASE 13."""
    ids = prompt(300, seed=3100)
    Stream(client, ids, 4, route="P-MD").right()
    until(lambda: claims.held(ids) == 8)  # four blocks at P and at MD
    seeds = iter(range(3101, 4000))

    def forgotten() -> bool:
        for stream in [Stream(client, prompt(1000, seed=next(seeds)), 2, route="P-MD") for _ in range(6)]:
            stream.right()
        return claims.held(ids) == 0

    until(forgotten, seconds=60)
    assert Stream(client, ids, 20, route="P-MD").right().hit("prefill") == 0


def test_what_redis_lost_is_told_again(client: Client, claims: Claims) -> None:
    """CASE 13: a gap is noticed and filled from the holders' own word."""
    ids = prompt(300, seed=4000)
    Stream(client, ids, 4, route="P-MD").right()
    until(lambda: claims.held(ids) == 8)
    claims.redis.flushall()
    until(lambda: claims.held(ids) == 8)
    assert Stream(client, ids, 20, route="P-MD").right().hit("prefill") >= 256


def test_an_index_that_stands_still_holds_up_nobody(client: Client) -> None:
    """CASE 13: lookups are given up, then the index is taken for dead."""
    pid = client.deployment.record(INDEX).pid
    timeouts = counted(client, "router", "pdd_index_lookups_total", outcome="timeout")
    os.kill(pid, signal.SIGSTOP)
    try:
        stream = Stream(client, prompt(200, seed=4100), 10)
        stream.right()
        assert counted(client, "router", "pdd_index_lookups_total", outcome="timeout") == timeouts + 1
        until(lambda: not workers(client)[INDEX]["alive"])
        Stream(client, prompt(200, seed=4101), 10).right()
        assert counted(client, "router", "pdd_index_lookups_total", outcome="timeout") == timeouts + 1
    finally:
        os.kill(pid, signal.SIGCONT)
