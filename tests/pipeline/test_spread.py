"""Where requests go, in virtual time: nothing piles up, whoever joins gets work, and what is hit is still hit."""

from collections import Counter

import pytest

from pdd.core.events import StepDone
from pdd.core.ids import Key, Role
from pdd.core.routing import RoutingSettings
from pdd.plan.house import House
from pdd.plan.house_parts import Client, EngineSpec, HouseSpec
from tests.pipeline.test_house import prompt, ready

THREE = HouseSpec(prefills=3, relays=1, mains=3, line_bytes_per_s=100_000.0)


def served(house: House, clients: list[Client], role: Role) -> Counter[str]:
    """How many each worker of a role had."""
    assert house.settle(120.0), house.leftovers()
    assert all(client.ids == house.baseline(client) for client in clients)
    return Counter(client.complete.report.workers[role.value] for client in clients if client.complete)


def hits(clients: list[Client], role: Role) -> int:
    return sum(client.complete.report.hit[role.value] > 0 for client in clients if client.complete)


def from_cache(house: House, tokens: int) -> int:
    """Prompts of which P computed nothing before `tokens`: they were cached when its turn came, if not when it was opened."""
    first: dict[Key, int] = {}
    for process in house.processes.values():
        for _, event in process.node.history:
            if isinstance(event, StepDone) and process.me.role is Role.PREFILL:
                first = dict(event.computed) | first
    return sum(upto > tokens for upto in first.values())


@pytest.mark.parametrize("own", [1, 5, 64, 192])
def test_one_hot_prefix_does_not_pile_up_however_little_follows_it(own: int) -> None:
    """CASE 14, first half: P's places run out before its seconds do; who computes it second is hit as well from then on."""
    house = ready(THREE)
    house.submit(prompt(512), 2, route="P-MD")
    assert house.settle()
    house.run(1.0)
    clients = [house.submit((*prompt(512), *prompt(own, 100 + i)), 8, route="P-MD") for i in range(64)]
    for role in (Role.PREFILL, Role.MAIN):
        count = served(house, clients, role)
        assert len(count) == 3 and max(count.values()) <= 3 * min(count.values()), count
    assert hits(clients, Role.PREFILL) > 0 and hits(clients, Role.MAIN) > 0
    assert from_cache(house, 512) >= 60, "each P computes the prefix once"


def test_a_cold_burst_spreads_evenly() -> None:
    """CASE 14, second half."""
    house = ready(THREE)
    clients = [house.submit(prompt(100 + i % 7, 200 + i), 8, route="P-MD") for i in range(32)]
    for role in (Role.PREFILL, Role.MAIN):
        count = served(house, clients, role)
        assert len(count) == 3 and max(count.values()) <= 2 * min(count.values()), count


def test_a_cold_prefix_that_a_burst_shares_is_computed_once_at_each_worker() -> None:
    house = ready(THREE)
    clients = [house.submit((*prompt(512, 3), *prompt(5, 300 + i)), 8, route="P-MD") for i in range(30)]
    count = served(house, clients, Role.PREFILL)
    assert len(count) >= 2
    assert from_cache(house, 512) >= 30 - len(count)


@pytest.mark.parametrize("prior", [20.0, 200_000.0], ids=["slow", "quick"])
def test_a_worker_that_joins_gets_its_share_within_seconds_whatever_the_prior_says(prior: float) -> None:
    """It is taken for the average of its kind. By a slow prior it would get nothing, and so never be measured."""
    spec = HouseSpec(prefills=2, mains=1, line_bytes_per_s=1e6, routing=RoutingSettings(prefill_tokens_per_s=prior))
    house = ready(spec)
    clients = [house.submit(prompt(300, i), 4, route="P-MD") for i in range(8)]
    house.run(4.0)
    assert set(served(house, clients, Role.PREFILL)) == {"p1", "p2"}
    house.boot(Role.PREFILL, "p3")
    house.run(1.0)
    later = []
    for i in range(30):  # three seconds of them
        later.append(house.submit(prompt(300, 50 + i), 4, route="P-MD"))
        house.run(0.1)
    count = served(house, later, Role.PREFILL)
    assert count["p3"] >= 5 and max(count.values()) <= 20, count


def test_each_role_grows_and_shrinks_alone_while_streams_run() -> None:
    house = ready(HouseSpec(prefills=1, relays=1, mains=1, line_bytes_per_s=50_000.0))
    running = [house.submit(prompt(150, i), 150, route="P-RLD-MD") for i in range(3)]
    house.run(0.5)
    joining = ((Role.PREFILL, "p2"), (Role.RELAY, "r2"), (Role.MAIN, "m2"))
    for life, (role, name) in enumerate(joining, 1):
        house.boot(role, name)
        house.run(1.0)
        asked = [house.submit(prompt(150, 1000 * life + i), 6, route="P-RLD-MD") for i in range(12)]
        assert name in served(house, asked, role)
    assert all(client.complete and client.complete.report.epochs == 1 for client in running)


def test_small_engines_are_not_asked_beyond_their_places() -> None:
    """Sixteen places in all, for a hot prefix that one of four holds: nobody is refused and planned again."""
    spec = HouseSpec(prefills=4, mains=2, line_bytes_per_s=1e6, engines={Role.PREFILL: EngineSpec(max_sequences=4)})
    house = ready(spec)
    house.submit(prompt(256), 2, route="P-MD")
    assert house.settle()
    house.run(1.0)
    clients = [house.submit((*prompt(256), *prompt(3, 400 + i)), 8, route="P-MD") for i in range(14)]
    assert max(served(house, clients, Role.PREFILL).values()) <= 6
    assert all(not client.complete.report.refusals for client in clients if client.complete)
