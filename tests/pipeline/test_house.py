"""All five machines together, in virtual time: the client's tokens equal what one engine alone writes, whatever happened."""

import pytest

from pdd.core.ids import Role
from pdd.plan.house import House
from pdd.plan.house_parts import EngineSpec, HouseSpec


def prompt(n: int, seed: int = 1) -> tuple[int, ...]:
    return tuple((seed * 7919 + i * 104729) % 31_000 + 3 for i in range(n))


def ready(spec: HouseSpec | None = None, seed: int = 0) -> House:
    house = House(spec, seed)
    house.run(1.2)  # the first beats
    return house


def speakers(client) -> list[tuple[str, int, int]]:
    return client.complete.report.spoke


def test_a_cold_long_prompt_is_relayed_and_handed_over() -> None:
    house = ready()
    client = house.submit(prompt(300), 200)
    assert house.settle(), house.leftovers()
    assert client.ids == house.baseline(client)
    assert client.complete.report.route == "P-RLD-MD"
    (p, r, m) = speakers(client)
    assert p == ("prefill", 0, 1) and r[0] == "relay_decode" and m[0] == "main_decode" and m[2] == 200


def test_a_second_turn_hits_both_caches_and_goes_straight_to_main_decode() -> None:
    house = ready()
    first = house.submit(prompt(300), 160)  # long enough for the KV to cross while RLD writes
    assert house.settle()
    house.run(1.0)
    second = house.submit((*prompt(300), *first.ids, *prompt(20, 2)), 40)
    assert house.settle()
    report = second.complete.report
    assert second.ids == house.baseline(second)
    assert report.route == "P-MD" and report.hit["main_decode"] >= 448 and report.hit["prefill"] >= 288


@pytest.mark.parametrize("fence", [1, 2, 15, 16, 17, 63, 64, 65])
def test_the_fence_may_stand_anywhere(fence: int) -> None:
    house = ready()
    client = house.submit(prompt(200), 100, handover_after=fence, route="P-RLD-MD")
    assert house.settle()
    assert client.ids == house.baseline(client)
    assert client.complete.report.fence == fence
    assert speakers(client)[-1] == ("main_decode", fence, 100)


@pytest.mark.parametrize("route", ["P-MD", "P-RLD-MD"])
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_short_answers_end_with_their_limit_and_hold_nothing(route: str, max_tokens: int) -> None:
    house = ready()
    client = house.submit(prompt(130), max_tokens, route=route)
    assert house.settle(5.0), house.leftovers()
    assert client.ids == house.baseline(client) and client.finish.reason == "length"


@pytest.mark.parametrize("fence", [0, 1, 2, 17, 64])
def test_a_prefill_worker_hosts_the_relay_where_there_is_none(fence: int) -> None:
    house = ready(HouseSpec(relays=0))
    client = house.submit(prompt(300), 200, handover_after=fence)
    assert house.settle(), house.leftovers()
    assert client.ids == house.baseline(client)
    assert client.complete.report.workers["relay_decode"] == "p1"
    assert [role for role, _, _ in speakers(client)][-1] == "main_decode"
    assert fence in (0, client.complete.report.fence)


def test_sixteen_at_once_over_pools_of_other_page_sizes() -> None:
    spec = HouseSpec(
        prefills=2,
        mains=2,
        line_bytes_per_s=40_000.0,
        engines={Role.PREFILL: EngineSpec(page_size=64, pages=128), Role.MAIN: EngineSpec(page_size=8, pages=1024)},
    )
    house = ready(spec)
    clients = [house.submit(prompt(90 + 13 * i, i), 30 + i) for i in range(16)]
    assert house.settle(120.0), house.leftovers()
    for client in clients:
        assert client.ids == house.baseline(client)


def test_clients_that_leave_free_everything() -> None:
    house = ready()
    clients = [house.submit(prompt(200, i), 300) for i in range(8)]
    for client, wait in zip(clients, (0.0, 0.01, 0.1, 0.3, 0.8, 1.5, 3.0, 5.0), strict=True):
        house.run(wait)
        house.leave(client)
    assert house.settle(15.0), house.leftovers()


def test_full_means_429_and_nobody_means_503() -> None:
    house = House(HouseSpec(max_inflight=2))
    assert house.submit(prompt(100), 5).problem.status == 503
    house.run(1.2)
    clients = [house.submit(prompt(100, i), 50) for i in range(4)]
    assert [client.problem.status for client in clients if client.problem] == [429, 429]
    assert clients[2].problem.retry_after_s
    assert house.settle()
    assert all(client.ids == house.baseline(client) for client in clients[:2])


def test_a_prompt_over_the_limit_is_refused_at_once_and_names_it() -> None:
    house = ready()
    client = house.submit(prompt(5000), 10)
    assert client.problem.status == 400 and "4096" in client.problem.message
    assert not house.leftovers()


@pytest.mark.parametrize("at", [0.05, 0.2, 0.5, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("victim", ["p1", "r1", "m1", "index"])
def test_any_worker_may_die_at_any_time(victim: str, at: float) -> None:
    house = ready(HouseSpec(prefills=2, relays=2, mains=2))
    clients = [house.submit(prompt(200 + i, i), 100) for i in range(3)]
    house.run(at)
    house.kill(victim)
    house.run(2.0)
    house.boot(house.processes[victim].me.role, victim)
    assert house.settle(90.0), house.leftovers()
    for client in clients:
        assert client.ids == house.baseline(client)


def test_a_recorded_history_replays_to_the_same_effects() -> None:
    """Core is deterministic: a fresh machine, fed the events of a life, asks for the same effects."""
    seen: list[tuple[object, list[object]]] = []
    house = House(HouseSpec(), 3, lambda node, event, effects: seen.append((node, list(effects))))
    house.run(1.2)
    house.submit(prompt(200), 50)
    assert house.settle()
    fresh = House(HouseSpec(), 3)
    for name, process in house.processes.items():
        machine = fresh.processes[name].node.machine
        machine.__init__(*_arguments(machine))  # a first life again
        effects = [effect for node, effects in seen if node is process.node for effect in effects]
        replayed = [
            effect
            for i, (now, event) in enumerate(process.node.history)
            for effect in (machine.start(now) if i == 0 else machine.handle(event, now))
        ]
        assert replayed == effects


def _arguments(machine) -> tuple:
    house = House(HouseSpec(), 3)
    other = house.processes[machine.me.name].node.machine
    if hasattr(other, "card"):
        return other.me, other.card, other.timeouts, b"secrets"
    if hasattr(other, "routing"):
        return other.me, other.fleet.fingerprint, other.timeouts, other.routing
    return other.me, other.timeouts
