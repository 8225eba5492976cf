"""kill -9 of P, RLD, MD or the prefix index at each stage of a request: the client gets every token, once, and nothing else.

One worker of each role, so that nobody else can take the dead one's place: P is replaced by MD alone, RLD by MD, MD by RLD.
The dead one comes back under its name for the next test.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdd.cli.fleet import Line
from pdd.cli.line import change
from tests.e2e.client import Client, until
from tests.e2e.conftest import serving
from tests.e2e.streams import QUICK, Stream, counted, kill, mend, survivors
from tests.models import prompt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

P, RLD, MD, INDEX = "prefill-1", "relay_decode-1", "main_decode-1", "prefix_index"
SLOW_MBIT, QUICK_MBIT = 4.0, 200.0  # 1 MB of KV, 512 tokens of the tiny model, takes 2.1 s or 42 ms
LONG = 1800  # prompt tokens: P computes over them for 1.5 s


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    wanted = survivors(model, line=Line(QUICK_MBIT, 5.0))
    yield from serving(wanted, tmp_path_factory.mktemp("crashes"))


@pytest.fixture
def client(shared: Client) -> Iterator[Client]:
    """The deployment, whole and with nothing running; afterwards it must be able to become so again."""
    change(shared.deployment.line_control, rate_mbit=QUICK_MBIT)
    mend(shared)
    yield shared
    change(shared.deployment.line_control, rate_mbit=QUICK_MBIT)
    mend(shared)


@dataclass(frozen=True)
class Stage:
    """A request that is to be met at one stage: how it is asked for, and how to see that it is there."""

    prompt: int
    outputs: int
    fence: int
    reached: Callable[[Client, Stream, float], object]  # the last: transfers to MD that had ended before
    behind: int = 0  # prompt tokens of another request, before it
    rate_mbit: float = QUICK_MBIT


def whole_at_main(client: Client) -> float:
    return counted(client, P, "pdd_kv_transfer_seconds_count", way="wan")


STAGES = {
    "queued": Stage(100, 60, 30, lambda client, stream, done: client.metric(P, "pdd_held_requests") == 2, behind=LONG),
    "prefill": Stage(LONG, 60, 30, lambda client, stream, done: client.metric(P, "pdd_held_requests") == 1),
    "transfer": Stage(600, 90, 60, lambda client, stream, done: stream.tokens >= 2, rate_mbit=SLOW_MBIT),
    "before-yield": Stage(150, 220, 190, lambda client, stream, done: whole_at_main(client) > done),
    "after": Stage(150, 150, 4, lambda client, stream, done: stream.tokens >= 20),
}

# Whose death must show as which plan of the router; MD's, while RLD speaks, costs no plan: RLD goes on.
REPLANS = {
    (P, "queued"): "lost_prefill",
    (P, "prefill"): "lost_prefill",
    **{(RLD, stage): "lost_relay_decode" for stage in ("queued", "prefill", "transfer", "before-yield")},
    (MD, "after"): "lost_main_decode",
}
RELAY_GOES_ON = [(MD, "queued"), (MD, "prefill"), (MD, "transfer"), (MD, "before-yield"), (P, "transfer")]
UNTOUCHED = [(P, "before-yield"), (P, "after"), (RLD, "after"), *((INDEX, stage) for stage in STAGES)]


def begin(client: Client, stage: Stage, seed: int) -> tuple[Stream, list[Stream]]:
    """The request, met at its stage, and whatever else was needed for that."""
    change(client.deployment.line_control, rate_mbit=stage.rate_mbit)
    done = whole_at_main(client)
    others = []
    if stage.behind:
        others.append(Stream(client, prompt(stage.behind, seed=seed + 1), 20, route="P-RLD-MD", fence=10))
        until(lambda: client.metric(P, "pdd_held_requests") == 1)
    stream = Stream(client, prompt(stage.prompt, seed=seed), stage.outputs, route="P-RLD-MD", fence=stage.fence)
    until(lambda: stage.reached(client, stream, done))
    return stream, others


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("victim", [P, RLD, MD, INDEX])
def test_whoever_dies_at_whatever_stage_the_client_gets_every_token_once(
    client: Client, victim: str, stage: str
) -> None:
    seed = 1000 * list(STAGES).index(stage) + 10 * [P, RLD, MD, INDEX].index(victim)
    reason = REPLANS.get((victim, stage), "")
    replans = counted(client, "router", "pdd_replans_total", reason=reason) if reason else 0.0
    on_relay = client.metric("router", "pdd_ended_on_relay_total")

    stream, others = begin(client, STAGES[stage], seed)
    assert not stream.ended
    kill(client.deployment, victim)
    answer = stream.right()
    for other in others:
        other.right()

    if reason:
        assert counted(client, "router", "pdd_replans_total", reason=reason) > replans
        assert answer.report["epochs"] > 1
    if (victim, stage) in RELAY_GOES_ON:
        assert client.metric("router", "pdd_ended_on_relay_total") > on_relay
        assert answer.speakers[-1][0] == "relay_decode"
    if (victim, stage) in UNTOUCHED:
        assert answer.report["epochs"] == 1
        assert answer.speakers[-1] == ("main_decode", STAGES[stage].fence, STAGES[stage].outputs)


@pytest.mark.parametrize("victim", [P, RLD, MD])
def test_a_worker_restarted_under_its_name_takes_work_again(client: Client, victim: str) -> None:
    kill(client.deployment, victim)
    client.deployment.begin(victim)
    mend(client)
    ids = prompt(90, seed=7000 + len(victim))
    answer = Stream(client, ids, 40, route="P-RLD-MD", fence=12).right()
    assert answer.speakers == [("prefill", 0, 1), ("relay_decode", 1, 12), ("main_decode", 12, 40)]
    assert set(answer.report["workers"].values()) == {P, RLD, MD}
    assert all(hit == 0 for hit in answer.report["hit"].values())  # nobody believes its former life's blocks


def test_hits_survive_the_death_of_the_index(client: Client) -> None:
    ids = prompt(256, seed=7100)
    first = Stream(client, ids, 20, route="P-MD").right()
    kill(client.deployment, INDEX)
    client.deployment.begin(INDEX)
    mend(client)
    again = Stream(client, ids + first.ids, 20).right()
    assert again.hit("prefill") >= 192  # the whole blocks of the prompt, without the last


def test_the_death_of_the_router_ends_its_clients_frees_its_workers_and_forgets_no_hit(client: Client) -> None:
    """Workers notice by the lease that nobody renews. What they have cached the next life finds by the index."""
    ids = prompt(256, seed=7200)
    first = Stream(client, ids, 20, route="P-MD").right()
    stream = Stream(client, prompt(150, seed=7201), 3000, route="P-RLD-MD", fence=2500)
    until(lambda: stream.tokens >= 20)
    kill(client.deployment, "router")
    until(lambda: stream.ended, seconds=5)
    assert stream.tokens < stream.max_tokens
    until(
        lambda: not any(client.metric(name, "pdd_held_requests") for name in (P, RLD, MD)), float(QUICK["LEASE_S"]) + 5
    )
    mend(client)
    again = Stream(client, ids + first.ids, 20, route="P-MD").right()
    assert again.hit("prefill") >= 192 and again.hit("main_decode") >= 192
