"""What a fleet costs, what it can promise, which is cheapest, and what revenue says."""

from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from pdd.cli.main import app
from pdd.core.cost import EngineCost
from pdd.core.ids import Role
from pdd.core.roles.router import Router
from pdd.plan import elastic, search, what_if
from pdd.plan.bathtub import Tub, bottom, published, revenue, tub
from pdd.plan.capacity import capacity, under
from pdd.plan.compare import as_data, lines, markdown, row, systems
from pdd.plan.first_cut import first_cut
from pdd.plan.fleet_of import fleet_plan
from pdd.plan.other_routers import HitThresholdRouter
from pdd.plan.simulated import SimFleet
from pdd.plan.turns import cache_curve, samples
from pdd.plan.worth import cost
from pdd.sim.report import summarize
from pdd.sim.scenario import PriceTable, ScenarioError, read_scenario, variant
from pdd.sim.workload import Load
from tests.plan.fleets import HERE, SCENARIOS, tiny

# -- scenarios --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_scenario_of_the_repository_can_be_read(path: Path) -> None:
    found = read_scenario(path)
    assert found.name == path.stem
    if found.model:
        for one in systems(found).values():
            fleet_plan(one)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model": "gpt-5"}, "model: no 'gpt-5'"),
        ({"fleet": {"main": {"chip": "H900"}}}, "main_decode.chip"),
        ({"fleet": {"main": {"cost": {"speed": 3}}}}, "no speed"),
        ({"fleet": {"main": {"cards": 1, "chip": "910B"}}}, "do not fit"),
        ({"fleet": {"router": "random"}}, "fleet.router"),
        ({"routing": {"price": 1}}, "routing: no price"),
        ({"timeouts": {"suspect_s": 0.1}}, "timeouts"),
    ],
)
def test_a_wrong_scenario_is_told_with_its_place(changes: dict, word: str) -> None:
    with pytest.raises(ScenarioError, match=word):
        fleet_plan(tiny(**changes))


def test_an_unknown_name_in_a_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('name = "x"\n[load]\nat_once = 1\nsessions = 1\n[load.agent]\n[fleet]\nworkers = 3\n')
    with pytest.raises(ScenarioError, match="unknown field `workers`"):
        read_scenario(path)
    with pytest.raises(ScenarioError, match="no such scenario"):
        read_scenario(tmp_path / "y.toml")


def test_a_variant_changes_what_it_names_and_nothing_else() -> None:
    changed = tiny(fleet={"main": {"workers": 3}})
    assert changed.fleet.main.workers == 3 and changed.fleet.main.chip == "H200"
    assert changed.fleet.prefill == tiny().fleet.prefill


# -- money ------------------------------------------------------------------------------------------------------------


def test_costs_and_bcr_of_the_published_fleets_come_out() -> None:
    paper = read_scenario(SCENARIOS / "paper.toml")
    baseline = systems(paper)["same site, H100 (IDC-PD)"]
    assert cost(baseline) == pytest.approx(88.0)
    assert 9.0 / cost(baseline) == pytest.approx(0.1023, abs=1e-4)
    for price, published_cost, bcr in ((1.2, 81.75, 0.1407), (1.3, 84.95, 0.1354)):
        ours = variant(paper, {"price": {"nodes": {"H200": price}}})
        assert cost(ours) == pytest.approx(published_cost)
        assert 11.5 / cost(ours) == pytest.approx(bcr, abs=1e-4)


def test_a_chip_without_a_price_is_told() -> None:
    free = msgspec.structs.replace(tiny(), price=PriceTable())
    with pytest.raises(ScenarioError, match="no H100"):
        cost(free)


# -- capacity and comparison ------------------------------------------------------------------------------------------


def test_capacity_is_where_the_promise_just_holds() -> None:
    scenario = tiny()
    best = capacity(scenario, 7, HERE, first=6.0, precision=0.2)
    assert best and best.verdict.kept
    beyond = under(scenario, best.rate_per_s * 1.5, 7, HERE)
    assert not beyond.verdict.kept and beyond.verdict.strain > 1


def test_who_is_alone_on_an_endless_line_waits_for_the_floor_and_nobody_for_less() -> None:
    alone = tiny(load={"sessions": 1, "warmup_s": 0.0}, line={"gbit_s": 1e4, "rtt_ms": 0.0})
    found = under(alone, 6.0, 7, HERE).found
    assert found["second_token_s"]["max"] == pytest.approx(found["alone_s"]["max"], abs=0.03)
    crowd = under(tiny(), 6.0, 7, HERE).found
    assert all(crowd["alone_s"][share] < crowd["second_token_s"][share] for share in ("p50", "p90", "p99"))


def test_a_promise_that_cannot_be_kept_has_no_capacity() -> None:
    assert capacity(tiny(sla={"ttft_s": 0.001}), 7, HERE, first=2.0, precision=0.2) is None


def test_systems_are_compared_on_the_same_requests() -> None:
    found = systems(tiny())
    assert list(found)[-1] == "ours" and len(found) >= 6
    rows = [row(found[name], 7, HERE, precision=0.2, search=False) for name in ("PDD as published", "ours")]
    assert len({one.at.found["prompt_tokens"] for one in rows}) == 1
    assert as_data(rows)[1]["name"] == "ours"
    told = {"requests_per_s": 10.0, "cost": 80.0, "ttft_s": (1.0, 2.0, 3.0)}
    table = lines(tiny(published={"PDD as published": told}), rows)
    assert [line[0].strip() for line in table] == ["PDD as published", "published", "ours"]
    assert {len(line) for line in table} == {12} and "0.1250" in table[1] and "1.0 / 2.0 / 3.0 s" in table[1]
    assert markdown(table).count("\n") == 5


def test_the_published_router_relays_below_its_threshold_alone() -> None:
    plan = fleet_plan(tiny(fleet={"router": "hit_threshold", "hit_threshold": 0.9}))
    assert plan.router is not Router and plan.router.func is HitThresholdRouter
    fleet = SimFleet(plan, tiny().load, "published", 7)
    run = fleet.run(HERE)
    for record in run.records:
        rate = record.hit.get("main_decode", 0) / record.prompt
        assert (record.route == "P-MD") == (rate >= 0.9), record


def runaway(router: str) -> dict[str, float]:
    """Conversations whose prompts grow: hit rates at P and MD, and requests that ended on RLD, with this router."""
    load = {
        "hits": None,
        "agent": {
            "system": {"median": 400},
            "first": {"median": 1500},
            "added": {"median": 700, "sigma": 0.5},
            "outputs": {"median": 60},
            "turns": {"median": 6},
            "think_s": {"median": 2},
        },
        "rate_per_s": 0.8,
    }
    fleet_table = {"router": router, "hit_threshold": 0.8, "main": {"workers": 2}}
    scenario = tiny(load=load, fleet=fleet_table, line={"gbit_s": 20.0})
    fleet = SimFleet(fleet_plan(scenario), scenario.load, router, 7)
    found = summarize(fleet.run(HERE))
    routes = found["routes"]
    hit = found["hit"]
    return {
        "gap": hit["prefill"] - hit.get("main_decode", 0.0),
        "relay_only": routes.get("P-RLD", 0) / sum(routes.values()),
    }


def test_ending_low_hits_on_the_relay_keeps_main_decode_ignorant_and_ours_does_not() -> None:
    forbidden, ours = runaway("low_hits_on_relay"), runaway("ours")
    assert forbidden["relay_only"] > 0.5, "each miss makes the next turn a miss"
    assert ours["relay_only"] == 0.0
    assert abs(ours["gap"]) < 0.1


# -- planning ---------------------------------------------------------------------------------------------------------


def test_samples_know_what_an_endless_cache_would_hold() -> None:
    load = msgspec.convert({"agent": {"turns": {"median": 5}}, "at_once": 3, "sessions": 5}, Load)
    found = samples(load, 7, HERE, 1000)
    assert [one.at_s for one in found] == sorted(one.at_s for one in found)
    later = [one for one in found if one.known]
    assert len(later) > len(found) / 2
    assert all(one.missed == max(1, one.prompt - one.known) for one in found)


def test_a_cache_curve_rises_to_the_endless_caches_rate() -> None:
    load = msgspec.convert({"agent": {"turns": {"median": 8}}, "at_once": 6, "sessions": 20}, Load)
    found = samples(load, 7, HERE, 400)
    curve = cache_curve(found, [1e3, 3e4, 1e5, 1e9])
    assert curve == sorted(curve) and curve[0] == 0.0
    assert curve[-1] == pytest.approx(sum(one.known for one in found) / sum(one.prompt for one in found), rel=0.02)


def test_the_first_cut_grows_with_the_load() -> None:
    scenario = tiny()
    found = samples(scenario.load, 7, HERE, 500)
    small, large = first_cut(scenario, found), first_cut(tiny(load={"rate_per_s": 60.0}), found)
    assert large.demand.rate_per_s == 10 * small.demand.rate_per_s
    assert large.prefills > small.prefills and large.mains > small.mains and large.line_gbit_s > small.line_gbit_s


def test_the_cheapest_fleet_keeps_the_promise_and_nothing_smaller_that_was_tried_does() -> None:
    told: list[search.Tried] = []
    found = search.cheapest(tiny(load={"rate_per_s": 9.0, "duration_s": 10.0}), 7, HERE, told.append)
    assert found.best and found.best.kept and found.tried == told
    assert found.best.cost == min(one.cost for one in told if one.kept)
    assert search.as_data(found)["best"]["size"] == str(found.best.size)
    assert found.binds
    for number, one in enumerate(found.tried):
        broken = [earlier.size for earlier in found.tried[:number] if not earlier.kept]
        assert not any(one.size.within(size) for size in broken), "smaller than what broke it: it need not be tried"


def test_one_question_is_asked_at_a_time() -> None:
    said = CliRunner().invoke(app, ["plan", str(SCENARIOS / "fifth.toml"), "--surge", "--bathtub"])
    assert said.exit_code == 1 and "one question at a time: --bathtub or --surge" in said.output
    said = CliRunner().invoke(app, ["plan", str(SCENARIOS / "fifth.toml"), "--surge", "--budget", "9"])
    assert said.exit_code == 1 and "not with --surge" in said.output


def test_a_budget_is_not_overspent() -> None:
    found = search.best_for_budget(tiny(load={"duration_s": 8.0}), 1.5, 7, HERE)
    assert found.best and all(one.cost <= 1.5 for one in found.tried)
    assert found.best.bcr == max(one.bcr for one in found.tried if one.kept)


# -- bathtub ----------------------------------------------------------------------------------------------------------


def test_the_published_arithmetic_of_the_bathtub_comes_out() -> None:
    values = dict(published([0.0, 0.6, 0.99]))
    assert values[0.0] == pytest.approx(1.00, abs=0.005)
    assert values[0.6] == pytest.approx(0.75, abs=0.005)
    assert values[0.99] == pytest.approx(1.69, abs=0.01)
    assert revenue(1.0, 0.1) == pytest.approx(0.1)


def test_tails_of_their_own_dip_and_merged_ones_dip_less() -> None:
    given = Tub(EngineCost(0.5, 10_000.0, attention_s_per_pair=1e-9), 65_536, 8192)
    hits = [i / 400 for i in range(396)]
    own, merged, shared = (dict(tub(given, hits, 0.1, tails)) for tails in ("own step", "merged", "merged and shared"))
    assert min(own.values()) < min(shared.values()), "the tub is shallower"
    worst = max(own, key=lambda hit: shared[hit] / own[hit])
    assert shared[worst] / own[worst] > 1.1 and merged[worst] >= own[worst] * 0.999


def test_a_model_of_quadratic_attention_has_a_tub_and_one_of_linear_attention_has_none() -> None:
    hits = [i / 100 for i in range(100)]
    quadratic = Tub(EngineCost(0.0, 50_000.0, attention_s_per_pair=1e-9), 131_072, 8192)
    linear = Tub(EngineCost(0.0, 50_000.0), 131_072, 8192)
    where, depth = bottom(tub(quadratic, hits, 0.1, "merged and shared"))
    assert depth < 0.95 and 0.2 < where < 0.9
    assert bottom(tub(linear, hits, 0.1, "merged and shared"))[0] == 0.0


# -- what if, and elasticity ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", what_if.FACTORS)
def test_one_thing_is_changed_at_a_time(what: str) -> None:
    value, changed = what_if.changed(tiny(), what, 0.5)
    assert value > 0
    plain, other = msgspec.to_builtins(tiny()), msgspec.to_builtins(changed)
    assert [key for key in plain if plain[key] != other[key]] == ["line" if what in ("line", "rtt") else "load"]


def test_the_relay_pays_on_a_slow_line_and_the_plots_say_so() -> None:
    spots = [what_if.spot(tiny(load={"duration_s": 15.0}), "line", factor, 7, HERE) for factor in (0.2, 5.0)]
    slow, fast = spots
    assert what_if.p99(slow.relayed) < what_if.p99(slow.plain)
    assert what_if.pays_until(spots) == pytest.approx(slow.at) or what_if.p99(fast.relayed) < what_if.p99(fast.plain)
    assert what_if.plot("line", spots).startswith("<svg") and "line" in what_if.as_data({"line": spots})


def test_workers_that_join_while_serving_get_work_within_seconds() -> None:
    scenario = tiny(load={"rate_per_s": 5.0, "duration_s": 60.0})
    given = elastic.Surge(surge_at_s=20.0, join_at_s=25.0, factor=3.0)
    joined = elastic.surge(scenario, given, 7, HERE)
    assert joined.first_work_s is not None and joined.first_work_s < 5.0
    assert joined.curve and joined.worst_s >= joined.before_s
    assert Role.PREFILL in fleet_plan(scenario).workers
