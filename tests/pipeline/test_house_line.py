"""CASES 8 and 9 with all machines in virtual time: a slow, stalled, cut or lying line costs the client nothing but time.

And the line's owner: the router leases the line to every P that sends.
"""

import random
from dataclasses import replace

import pytest

from pdd.adapters.kv_memory_lines import Fault, Parcel, RandomFaults, flipped, no_fault
from pdd.core.messages import LineLease
from pdd.core.wire import ChunkFrame
from pdd.plan.house import House
from pdd.plan.house_parts import Client, HouseSpec
from pdd.ports import KvShape

SITES = ("a", "b")
SLOW = HouseSpec(line_bytes_per_s=1500.0, line_rtt_s=0.05)  # the prompt's KV takes this line most of a minute
NO_WAN = HouseSpec(line_bytes_per_s=1e9, line_rtt_s=0.0002)


def prompt(n: int, seed: int = 1) -> tuple[int, ...]:
    return tuple((seed * 7919 + i * 104729) % 31_000 + 3 for i in range(n))


def ready(spec: HouseSpec, seed: int = 0) -> House:
    house = House(spec, seed)
    house.run(1.2)  # the first beats
    return house


def seconds(house: House, client: Client, index: int) -> float:
    """From now on until output `index`."""
    began = house.world.now()
    assert house.world.run(began + 120, lambda: len(client.spoken_at) > index), "nothing was spoken"
    return client.spoken_at[index] - began


def dropped(house: House, reason: str) -> float:
    notes = [process.notes for process in house.processes.values()]
    return sum(one.total("pdd_kv_frames_dropped_total", reason=reason) for one in notes)


def right(house: House, client: Client, within_s: float = 200.0) -> None:
    assert house.settle(within_s), house.leftovers()
    assert client.problem is None and client.ids == house.baseline(client)


# -- CASE 8 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1])
def test_the_first_tokens_do_not_wait_for_a_slow_line(index: int) -> None:
    near, far = (ready(spec) for spec in (NO_WAN, SLOW))
    alone, across = (seconds(house, house.submit(prompt(300), 400), index) for house in (near, far))
    assert across <= 1.2 * alone


def test_over_a_slow_line_the_hand_over_is_put_off_until_the_kv_is_there() -> None:
    house = ready(SLOW)
    client = house.submit(prompt(300), 3000)
    right(house, client, 400)
    assert [role for role, _, _ in client.complete.report.spoke] == ["prefill", "relay_decode", "main_decode"]  # type: ignore[union-attr]


def test_over_a_slow_line_a_short_answer_ends_before_the_hand_over() -> None:
    house = ready(SLOW)
    client = house.submit(prompt(300), 60)
    right(house, client)
    assert [role for role, _, _ in client.complete.report.spoke] == ["prefill", "relay_decode"]  # type: ignore[union-attr]


@pytest.mark.parametrize("stall_at_s", [0.2, 2.0])
def test_a_line_that_stalls_for_half_a_minute_recovers_unaided(stall_at_s: float) -> None:
    house = ready(replace(SLOW, line_bytes_per_s=6000.0))
    client = house.submit(prompt(300), 2000)
    house.run(stall_at_s)
    house.lines.stall(*SITES)
    spoken = len(client.ids)
    house.run(30.0)
    assert len(client.ids) > spoken, "RLD goes on while the line stands still"
    house.lines.restore(*SITES)
    right(house, client, 400)
    following = house.submit(prompt(200, 2), 400)
    right(house, following)
    assert following.complete.report.spoke[-1][0] == "main_decode"  # type: ignore[union-attr]


def test_a_connection_that_was_cut_while_idle_costs_the_next_request_nothing() -> None:
    house = ready(replace(SLOW, line_bytes_per_s=50_000.0))
    right(house, house.submit(prompt(200, 2), 100))
    house.run(60.0)
    house.lines.cut(*SITES)
    house.lines.restore(*SITES)
    house.run(1.0)
    client = house.submit(prompt(200, 3), 400)
    right(house, client)
    report = client.complete.report  # type: ignore[union-attr]
    assert report.spoke[-1][0] == "main_decode" and report.epochs == 1
    assert house.processes["p1"].notes.total("pdd_transfers_failed_total") == 0


def test_a_line_that_is_cut_again_and_again_delivers_between_the_cuts() -> None:
    house = ready(replace(SLOW, line_bytes_per_s=6000.0))
    client = house.submit(prompt(300), 2000)
    for _ in range(4):
        house.run(1.5)
        house.lines.cut(*SITES)
        house.run(0.5)
        house.lines.restore(*SITES)
    right(house, client, 400)


# -- CASE 9 -----------------------------------------------------------------------------------------------------------


class Once:
    """A fault for one chunk, the `number`th that crosses whichever line."""

    def __init__(self, number: int, change: Fault) -> None:
        self._left, self._change = number, change

    def __call__(self, parcel: Parcel) -> list[Parcel]:
        if not isinstance(parcel.frame, ChunkFrame):
            return [parcel]
        self._left -= 1
        return self._change(parcel) if self._left == 0 else [parcel]


def _flip(parcel: Parcel) -> list[Parcel]:
    assert parcel.payload is not None
    return [parcel._replace(payload=flipped(parcel.payload, parcel.payload.nbytes // 2))]


def _cut_short(parcel: Parcel) -> list[Parcel]:
    assert parcel.payload is not None
    return [parcel._replace(payload=parcel.payload[:-7])]


FAULTS: dict[str, Fault] = {
    "checksum": _flip,
    "short": _cut_short,
    "double": lambda parcel: [parcel, parcel],
}


@pytest.mark.parametrize("number", [1, 2, 5, 9])
@pytest.mark.parametrize("reason", FAULTS)
def test_a_chunk_that_lies_is_noticed_counted_and_costs_no_token(reason: str, number: int) -> None:
    house = ready(HouseSpec(line_bytes_per_s=50_000.0))
    house.lines.fault = Once(number, FAULTS[reason])
    client = house.submit(prompt(300), 200)
    right(house, client)
    assert dropped(house, reason) == 1


def test_chunks_that_overtake_each_other_cost_no_token() -> None:
    house = ready(HouseSpec(line_bytes_per_s=50_000.0))
    house.lines.fault = RandomFaults(random.Random(1), delay=0.5, late_s=0.2)
    client = house.submit(prompt(300), 200)
    right(house, client)


@pytest.mark.parametrize("seed", range(12))
def test_a_line_that_lies_about_everything_for_a_while_costs_no_token(seed: int) -> None:
    rng = random.Random(seed)
    house = ready(HouseSpec(line_bytes_per_s=20_000.0), seed)
    house.lines.fault = RandomFaults(rng, *(rng.choice([0.0, 0.1, 0.3]) for _ in range(5)), late_s=0.3)
    clients = [house.submit(prompt(100 + 60 * number, seed + number), 150) for number in range(3)]
    house.run(rng.uniform(3.0, 12.0))
    house.lines.fault = no_fault
    for client in clients:
        right(house, client, 400)


# -- one owner of the line --------------------------------------------------------------------------------------------


LARGE = HouseSpec(
    prefills=2,
    kv_shape=KvShape(layers=2, kv_heads=4, head_dim=64, dtype="bfloat16"),  # prompts of 600 kB: none is small
    line_bytes_per_s=200_000.0,
)


def test_the_router_leases_the_line_to_both_senders_and_no_answer_suffers() -> None:
    house = ready(LARGE)
    clients = [house.submit(prompt(300, seed), 1200, route="P-MD") for seed in range(6)]
    for client in clients:
        right(house, client, 400)
    for name in ("p1", "p2"):
        leases = [message for message in house.heard(name) if isinstance(message, LineLease)]
        assert any(lease.bytes_per_s for lease in leases), f"{name} was never held to a part of the line"


def test_without_the_router_no_sender_waits_for_a_lease() -> None:
    house = ready(LARGE)
    for seed in range(4):
        house.submit(prompt(300, seed), 1200, route="P-MD")
    house.run(3.0)
    house.kill("router")
    house.run(0.5)
    before = house.lines.bytes_carried["a", "b"]
    house.run(5.0)
    assert house.lines.bytes_carried["a", "b"] - before > 0.8 * 5.0 * LARGE.line_bytes_per_s
