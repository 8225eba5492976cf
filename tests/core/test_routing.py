"""Routes by predicted seconds: what decides between P-MD and P-RLD-MD, and what never is a route."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdd.core.ids import Peer, Role
from pdd.core.messages import EngineLoad, LineState, WorkerCard
from pdd.core.routing import Candidate, RoutingSettings, routes

GIVEN = RoutingSettings(prefill_tokens_per_s=1000.0, line_bytes_per_s=1e6, line_rtt_s=0.05, relay_price_s=0.5)
CARD = WorkerCard("f", 8192, 8, bytes_per_token=10_000)
LINE = {"b": LineState("b", 1e6, 0.05, 0)}


def one(role: Role, name: str, site: str, **more: object) -> Candidate:
    return Candidate(Peer(site, role, name, 1), CARD, **more)  # type: ignore[arg-type]


def p(name: str = "p", **more: object) -> Candidate:
    return one(Role.PREFILL, name, "a", **{"lines": LINE, **more})


def r(name: str = "r", **more: object) -> Candidate:
    return one(Role.RELAY, name, "a", **more)


def m(name: str = "m", **more: object) -> Candidate:
    return one(Role.MAIN, name, "b", **more)


def test_many_missed_bytes_on_a_slow_line_take_the_relay() -> None:
    best = routes(1000, [p()], [r()], [m()], GIVEN)[0]  # 10 MB over 1 MB/s against 1 s of prefill
    assert best.name == "P-RLD-MD"
    assert best.terms["relay_price"] == 0.5
    assert best.rtt_s == 0.05, "as P measures it; the policy is told"


def test_a_hit_at_main_decode_leaves_the_relay_alone() -> None:
    assert routes(1000, [p(hit=960)], [r()], [m(hit=960)], GIVEN)[0].name == "P-MD"


def test_a_fast_line_leaves_the_relay_alone() -> None:
    fast = {"b": LineState("b", 1e9, 0.05, 0)}
    assert routes(1000, [p(lines=fast)], [r()], [m()], GIVEN)[0].name == "P-MD"


def test_bytes_decide_and_not_the_hit_rate() -> None:
    long = routes(200_000, [p(hit=190_000)], [r()], [m(hit=190_000)], GIVEN)[0]  # 95 % hit, 100 MB missed
    short = routes(40, [p()], [r()], [m()], GIVEN)[0]  # no hit, 0.4 MB missed
    assert (long.name, short.name) == ("P-RLD-MD", "P-MD")


def test_what_waits_on_the_line_counts() -> None:
    busy = {"b": LineState("b", 1e6, 0.05, 5_000_000)}
    assert routes(40, [p(lines=busy)], [r()], [m()], GIVEN)[0].name == "P-RLD-MD"


def test_a_full_relay_costs_more() -> None:
    full, busy_p = r(load=EngineLoad(running=8)), p(load=EngineLoad(running=4))
    prices = [
        next(route for route in routes(200, [busy_p], [relay], [m()], GIVEN) if route.name == "P-RLD-MD").seconds
        for relay in (r(), full)
    ]
    assert prices[1] - prices[0] == pytest.approx(GIVEN.full_batch_s)


def test_prefill_hosts_the_relay_where_none_has_room_and_it_has() -> None:
    full = r(load=EngineLoad(running=8))
    assert routes(1000, [p()], [r()], [m()], GIVEN)[0].cast.relay == r().peer
    assert routes(1000, [p()], [full], [m()], GIVEN)[0].cast.relay == p().peer
    assert routes(1000, [p()], [], [m()], GIVEN)[0].cast.relay == p().peer
    busy = p(load=EngineLoad(running=4))
    assert [route.name for route in routes(1000, [busy], [], [m()], GIVEN)] == ["P-MD"]


def test_the_relay_is_no_end_while_a_main_decode_lives() -> None:
    names = {route.name for route in routes(1000, [p()], [r()], [m()], GIVEN)}
    assert names == {"P-MD", "P-RLD-MD"}
    assert [route.name for route in routes(1000, [p()], [r()], [], GIVEN)] == ["P-RLD"]
    assert [route.name for route in routes(1000, [], [r()], [m()], GIVEN)] == ["MD"]
    assert [route.name for route in routes(1000, [], [r()], [], GIVEN)] == ["RLD"]
    assert routes(1000, [], [], [], GIVEN) == []


def test_a_cold_burst_spreads_over_equal_workers() -> None:
    """Every request is accounted before any beat shows it, so not all go to the lowest name."""
    prefills, mains = [p("p1"), p("p2")], [m("m1"), m("m2"), m("m3")]
    for _ in range(30):
        best = routes(500, prefills, [], mains, GIVEN)[0]
        for worker in (*prefills, *mains):
            if worker.peer in best.cast.members():
                worker.assigned_sequences += 1
                worker.assigned_tokens += 500 if worker.peer.role is Role.PREFILL else 0
    assert [worker.assigned_sequences for worker in prefills] == [15, 15]
    assert [worker.assigned_sequences for worker in mains] == [10, 10, 10]


def test_a_relay_that_knows_the_prompt_is_not_filled_to_the_brim_for_it() -> None:
    """Over the near path what is missed costs little: 10 MB are 20 ms."""
    knows = r("r1", hit=1000, load=EngineLoad(running=1))
    assert routes(1000, [p()], [knows, r("r2")], [m()], GIVEN)[0].cast.relay == r("r2").peer
    assert routes(1000, [p()], [r("r1", hit=1000), r("r2")], [m()], GIVEN)[0].cast.relay == knows.peer


@given(st.integers(1, 100_000), st.integers(0, 100_000), st.integers(0, 100_000), st.floats(1e3, 1e10))
def test_a_score_is_the_sum_of_its_terms_and_none_is_negative(prompt: int, p_hit: int, m_hit: int, rate: float) -> None:
    lines = {"b": LineState("b", rate, 0.05, 0)}
    p_hit, m_hit = min(p_hit, prompt - 1), min(m_hit, prompt)
    found = routes(prompt, [p(hit=p_hit, lines=lines)], [r()], [m(hit=m_hit)], GIVEN)
    assert [route.seconds for route in found] == sorted(route.seconds for route in found)
    for route in found:
        assert route.seconds == sum(route.terms.values())
        assert all(value >= 0 for value in route.terms.values())


def test_waiting_at_prefill_hides_nothing_of_a_requests_own_bytes() -> None:
    """They leave from when its prefill begins, behind those that P computes before. 2000 tokens are 20 MB and 2 s of prefill."""

    def line_s(bytes_per_s: float) -> float:
        busy = EngineLoad(waiting_tokens=2000, prefill_tokens_per_s=1000.0)
        found = routes(2000, [p(load=busy, lines={"b": LineState("b", bytes_per_s, 0.05, 0)})], [r()], [m()], GIVEN)
        direct = next(one for one in found if one.name == "P-MD")
        assert (direct.terms["queue"], direct.terms["prefill"]) == (2.0, 2.0)
        return round(direct.terms["line"], 6)

    assert line_s(40e6) == 0.025 + 256 / 4000, "all but the last chunk has crossed when prefill ends"
    assert line_s(5e6) == 0.025 + 4 + 4 - 4, "both requests' bytes, less what crosses meanwhile"
