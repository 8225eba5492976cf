"""Warm-up: what RLD served alone crosses to MD while nobody waits, never before what somebody waits for, and never for long."""

from dataclasses import replace

import pytest

from pdd.core.events import DrainWanted
from pdd.core.ids import Role
from pdd.core.singular import SingularSettings
from pdd.plan.house import House
from pdd.plan.house_parts import Client, EngineSpec, HouseSpec
from pdd.ports import KvShape
from tests.pipeline.test_house import prompt, ready

LINE = 400_000.0  # bytes/s: of 4096 bytes, 100 tokens in about a second
SHAPE = KvShape(layers=1, kv_heads=1, head_dim=512, dtype="float32")
SPEC = HouseSpec(line_bytes_per_s=LINE, kv_shape=SHAPE, singular=SingularSettings(cap=1.0, gap=2.0, warm_up=True))


def cut_short(house: House, seed: int = 1, tokens: int = 320) -> Client:
    """A long prompt with a short answer: RLD ends it, and the transfer is cut."""
    client = house.submit(prompt(tokens, seed), 8, route="P-RLD-MD")
    assert house.world.run(house.world.now() + 5.0, lambda: client.ended)
    assert client.ids == house.baseline(client)
    assert client.complete and client.complete.report.spoke[-1][0] == "relay_decode"
    return client


def outcomes(house: House) -> dict[str, float]:
    notes = house.processes["router"].notes
    return {
        name: total for name in ("learned", "given_up") if (total := notes.total("pdd_warm_ups_total", outcome=name))
    }


def hit_at_main(house: House, first: Client) -> int:
    """Of the next turn."""
    turn = house.submit((*first.asked.ids, *first.ids, *prompt(20, 9)), 20, route="P-MD")
    assert house.settle(60.0), house.leftovers()
    assert turn.ids == house.baseline(turn) and turn.complete
    return turn.complete.report.hit[Role.MAIN.value]


@pytest.mark.parametrize(("on", "hit"), [(True, 320), (False, 0)])
def test_the_next_turn_hits_at_main_decode_if_the_line_had_time_between(on: bool, hit: int) -> None:
    house = ready(replace(SPEC, singular=replace(SPEC.singular, warm_up=on)))
    first = cut_short(house)
    assert house.settle(30.0), house.leftovers()
    assert outcomes(house) == ({"learned": 1} if on else {})
    house.run(0.5)
    assert hit_at_main(house, first) == hit


def test_main_decode_says_nothing_to_a_warm_up() -> None:
    house = ready(SPEC)
    cut_short(house)
    assert house.settle(30.0)
    assert house.processes["m1"].notes.total("pdd_tokens_written_total") == 0


def test_somebody_who_is_waited_for_does_not_feel_a_warm_up() -> None:
    """The same request alone, and while 1,500 tokens of warm-up wait for the line: it goes first."""
    waited = []
    for warm in (False, True):
        house = ready(SPEC)
        if warm:
            cut_short(house, 2, 1500)
            house.run(1.0)
        client = house.submit(prompt(200, 3), 20, route="P-MD")
        before = house.world.now()
        assert house.world.run(before + 60.0, lambda client=client: client.ended)  # type: ignore[misc]
        assert client.ids == house.baseline(client)
        waited.append(house.world.now() - before)
    assert waited[1] < waited[0] * 1.25, waited


def test_the_next_turn_ends_its_warm_up_and_sends_what_is_missing_itself() -> None:
    house = ready(SPEC)
    first = cut_short(house)
    house.run(0.5)
    turn = house.submit((*first.asked.ids, *first.ids, *prompt(20, 9)), 40)
    assert outcomes(house) == {"given_up": 1}
    assert house.settle(60.0), house.leftovers()
    assert turn.ids == house.baseline(turn)


def test_places_at_a_worker_are_given_up_to_who_needs_them() -> None:
    """Three places at MD: the third request takes that of the warm-up."""
    house = ready(replace(SPEC, engines={Role.MAIN: EngineSpec(max_sequences=3)}))
    cut_short(house, 4, 900)
    clients = [house.submit(prompt(40, 5 + i), 60, route="P-MD") for i in range(3)]
    assert house.settle(60.0), house.leftovers()
    assert outcomes(house) == {"given_up": 1}
    assert all(client.ids == house.baseline(client) for client in clients)
    assert all(not client.complete.report.refusals for client in clients if client.complete)


def test_staging_memory_is_given_up_to_who_needs_it() -> None:
    house = ready(replace(SPEC, staging_bytes=500 * SHAPE.bytes_per_token))
    cut_short(house, 6, 320)
    house.run(0.5)
    client = house.submit(prompt(300, 7), 20, route="P-MD")
    assert house.settle(60.0), house.leftovers()
    assert client.ids == house.baseline(client) and outcomes(house) == {"given_up": 1}


@pytest.mark.parametrize("victim", ["p1", "m1"])
def test_who_dies_in_a_warm_up_ends_it(victim: str) -> None:
    house = ready(SPEC)
    cut_short(house)
    house.run(0.5)
    house.kill(victim)
    assert house.settle(20.0), house.leftovers()
    assert outcomes(house) == {"given_up": 1}


def test_a_router_that_drains_ends_its_warm_ups() -> None:
    house = ready(SPEC)
    cut_short(house)
    house.run(0.5)
    router = house.processes["router"].node
    router.post(DrainWanted())
    assert house.world.run(house.world.now() + 2.0, lambda: router.machine.idle)
    assert outcomes(house) == {"given_up": 1}


def test_a_warm_up_that_takes_too_long_is_given_up() -> None:
    house = ready(replace(SPEC, singular=replace(SPEC.singular, patience_s=2.0)))
    cut_short(house, 8, 1500)
    assert house.settle(10.0), house.leftovers()
    assert outcomes(house) == {"given_up": 1}


def test_the_next_turn_ends_a_transfer_that_only_went_on_so_that_main_decode_learns() -> None:
    """No cut was allowed. Sent by both turns, the same prefix would cross the line twice."""
    house = ready(replace(SPEC, singular=SingularSettings(cap=0.0)))
    first = cut_short(house)
    turn = house.submit((*first.asked.ids, *first.ids, *prompt(20, 9)), 40)
    assert outcomes(house) == {"given_up": 1}
    assert house.settle(60.0), house.leftovers()
    assert turn.ids == house.baseline(turn)


def test_a_transfer_that_goes_on_ends_when_main_decode_has_learned() -> None:
    house = ready(replace(SPEC, singular=SingularSettings(cap=0.0)))
    first = cut_short(house)
    assert house.settle(30.0), house.leftovers()
    assert outcomes(house) == {"learned": 1} and hit_at_main(house, first) == 320
