"""The simulated fleet: the product's machines, so the product's laws; reproducible; and as exact as the house of real bytes."""

from dataclasses import replace

import pytest

from pdd.core.cost import EngineCost
from pdd.core.effects import CloseSequence, OpenSequence, Speak
from pdd.core.events import StepDone
from pdd.core.ids import Key, Role
from pdd.core.sampling import Sampling
from pdd.core.singular import SingularSettings
from pdd.plan.fleet_parts import limits_of
from pdd.plan.house import House
from pdd.plan.house_parts import EngineSpec, HouseSpec
from pdd.plan.simulated import SimFleet
from pdd.sim.engine import END, Lengths, SimEngine
from pdd.sim.kv import Sizes
from pdd.sim.report import Run, summarize
from pdd.sim.striding import StridingBatch
from pdd.sim.workload import Turn
from pdd.sim.workload.session import OneTurn
from pdd.sim.world import World
from tests.plan.fleets import AGENTS, KV_BYTES, fleet_plan, simulated, times

SINGLE = {
    "hits": {"context_tokens": 1024, "outputs": {"median": 60}, "low": 0.0, "span": 0.0},
    "rate_per_s": 0.05,
    "sessions": 1,
}


def test_the_same_seed_gives_the_same_result_and_another_seed_another() -> None:
    (_, one), (_, again), (_, other) = (simulated(fleet_plan(), seed=seed) for seed in (3, 3, 4))
    assert times(one) == times(again) and one.facts == again.facts
    assert times(one) != times(other)


def test_every_request_is_answered_whole_and_everything_is_given_back() -> None:
    fleet, run = simulated(fleet_plan())
    assert run.records and not [record.error for record in run.records if record.error]
    assert all(record.outputs == sum(record.shares.values()) for record in run.records)
    fleet.world.run(fleet.world.now() + SingularSettings().patience_s + 1)  # MD learns what RLD ended
    for name, worker in fleet.workers.items():
        load = worker.engine.batch.load()
        assert worker.node.machine.idle, name
        assert load.free_pages == load.total_pages and load.running == 0, name
        assert not worker.kv._leaving and not worker.kv._expected, name
    assert fleet.router_machine.idle


def test_a_miss_costs_its_prefill_and_its_crossing() -> None:
    """1,024 tokens at 4,000/s in chunks of 256, then all but the last chunk has crossed behind prefill."""
    plan = fleet_plan(1, 0, 1)
    cost = replace(plan.workers[Role.PREFILL].cost, attention_s_per_pair=0.0)
    plan.workers[Role.PREFILL] = replace(plan.workers[Role.PREFILL], cost=cost)
    _, run = simulated(plan, SINGLE)
    (record,) = run.records
    prefill = 4 * (0.02 + 256 / 4000)
    assert record.ttft_s == pytest.approx(prefill, abs=0.005)
    crossing = 1024 * KV_BYTES / 2e5  # the line is slower than prefill: it sets the pace
    assert record.second_token_s == pytest.approx(0.084 + crossing + 0.025 + 0.02, abs=0.05)
    assert record.wan_bytes == 1024 * KV_BYTES


def test_without_streaming_the_crossing_comes_after_prefill() -> None:
    (_, streamed), (_, whole) = (
        simulated(fleet_plan(1, 0, 1, sizes=Sizes(KV_BYTES, streaming=streaming)), SINGLE)
        for streaming in (True, False)
    )
    behind = whole.records[0].second_token_s - streamed.records[0].second_token_s
    assert behind == pytest.approx(3 * (0.02 + 256 / 4000), abs=0.05), "what three chunks of prefill could have hidden"


def test_a_recurrent_state_crosses_once_for_each_hand_over() -> None:
    sizes = Sizes(KV_BYTES, state_bytes=50_000)
    _, run = simulated(fleet_plan(1, 0, 1, sizes=sizes), SINGLE)
    assert run.records[0].wan_bytes == 1024 * KV_BYTES + 50_000


def test_a_slow_line_is_masked_by_the_relay() -> None:
    (_, relayed), (_, plain) = (simulated(fleet_plan(1, relays, 1), SINGLE) for relays in (1, 0))
    assert relayed.records[0].route == "P-RLD-MD" and plain.records[0].route == "P-MD"
    assert relayed.records[0].second_token_s < plain.records[0].second_token_s / 5


@pytest.mark.parametrize("table", [AGENTS, AGENTS | {"at_once": 1, "sessions": 3}])
def test_strides_change_no_more_than_a_step(table: dict) -> None:
    """What is told late may route a later request otherwise, so sums are compared where several run at once."""
    (slow, exact), (fast, strided) = (simulated(fleet_plan(2, 0, 2, stride=stride), table) for stride in (1, 16))
    assert fast.events < slow.events
    a, b = summarize(exact), summarize(strided)
    assert a["outputs"] == b["outputs"] and a["requests"] == b["requests"]
    for key in ("ttft_s", "second_token_s", "tpot_s", "e2e_s"):
        assert b[key]["mean"] == pytest.approx(a[key]["mean"], rel=0.02, abs=0.02), key


def test_a_grain_changes_little() -> None:
    table = {"hits": {"context_tokens": 8192, "outputs": {"median": 60}}, "rate_per_s": 1.5, "duration_s": 60}

    def grained(grain: int) -> Run:
        limits = limits_of(400, 32, 256 // grain * 4, 16_000)
        plan = fleet_plan(kv_bytes=KV_BYTES * grain, sizes=Sizes(KV_BYTES * grain), grain=grain)
        plan = replace(plan, workers={role: replace(one, limits=limits) for role, one in plan.workers.items()})
        plan = replace(plan, routing=replace(plan.routing, prefill_tokens_per_s=4000 / grain))
        plan = replace(plan, line=replace(plan.line, bytes_per_s=1e7))
        return simulated(plan, table | {"hits": table["hits"] | {"grain": grain}})[1]

    fine, coarse = summarize(grained(1)), summarize(grained(4))
    assert coarse["prompt_tokens"] == fine["prompt_tokens"]
    assert coarse["hit"]["prefill"] == pytest.approx(fine["hit"]["prefill"], abs=0.05)
    assert coarse["line"]["bytes_per_request"] == pytest.approx(fine["line"]["bytes_per_request"], rel=0.35)
    assert coarse["ttft_s"]["mean"] == pytest.approx(fine["ttft_s"]["mean"], rel=0.35)


@pytest.mark.parametrize("name", ["p1", "r1", "m1"])
def test_a_worker_that_dies_costs_its_clients_nothing_but_time(name: str) -> None:
    fleet_of = lambda: simulated(fleet_plan(2, 2, 2))  # noqa: E731
    _, calm = fleet_of()

    from .fleets import HERE, load  # the same fleet, with a crash in it

    fleet = SimFleet(fleet_plan(2, 2, 2), load(AGENTS), "crash", 7)
    role = fleet.workers[name].me.role
    fleet.world.call_later(6.0, lambda: fleet.kill(name))
    fleet.world.call_later(12.0, lambda: fleet.boot(role, name))
    run = fleet.run(HERE)
    assert len(run.records) == len(calm.records) and not any(record.error for record in run.records)
    assert sum(record.outputs for record in run.records) == sum(record.outputs for record in calm.records)
    assert fleet.workers[name].me.incarnation == 2


def test_the_simulator_and_the_house_of_real_bytes_agree() -> None:
    """One fleet in both worlds: the house moves encoded messages and real KV, the simulator counts."""
    cost = EngineCost(step_s=0.02, prefill_tokens_per_s=2000.0, import_bytes_per_s=1e9)
    prompts = [(70 * i + 300, 90) for i in range(4)]
    spec = HouseSpec(line_bytes_per_s=40_000.0, engines={role: EngineSpec(cost=cost, chunk_tokens=64) for role in Role})
    house = House(spec)
    house.run(1.2)
    clients = []
    for number, (tokens, outputs) in enumerate(prompts):
        ids = tuple(1000 + (number * 7919 + i * 104729) % 20_000 for i in range(tokens))
        clients.append(house.submit(ids, outputs))
        house.run(3.0)
    assert house.settle(120.0)
    begun = [1.2 + 3.0 * i for i in range(4)]
    real = [(c.spoken_at[0] - t, c.spoken_at[1] - t, c.spoken_at[-1] - t) for c, t in zip(clients, begun, strict=True)]

    plan = fleet_plan(1, 1, 1)
    kv_bytes = spec.kv_shape.bytes_per_token
    workers = {role: replace(one, cost=cost, limits=limits_of(128, 32, 64, 4096)) for role, one in plan.workers.items()}
    line = replace(plan.line, bytes_per_s=40_000.0, rtt_s=0.05, near_bytes_per_s=1e9)
    plan = replace(
        plan, workers=workers, line=line, kv_bytes=kv_bytes, sizes=Sizes(kv_bytes), routing=spec.routing, stride=1
    )

    from .fleets import HERE, load

    fleet = SimFleet(plan, load(AGENTS | {"at_once": 0, "rate_per_s": 1.0}), "test", 7)
    book = fleet.load.book(7)
    fleet.starts = lambda: iter(
        (3.0 * i, OneTurn(f"s{i}", Turn(book.passage(i, tokens), outputs)))
        for i, (tokens, outputs) in enumerate(prompts)
    )
    run = fleet.run(HERE)
    predicted = [(r.ttft_s, r.second_token_s, r.last_s - r.intended_s) for r in run.records]
    for one, other in zip(real, predicted, strict=True):
        assert other == pytest.approx(one, rel=0.15, abs=0.06)
    assert [r.route for r in run.records] == [c.complete.report.route for c in clients]


# -- the engine alone -------------------------------------------------------------------------------------------------


def engine(world: World, told: list, stride: int, pages: int = 100) -> tuple[SimEngine, Lengths]:
    lengths = Lengths()
    batch = StridingBatch(limits_of(pages, 8, 256, 2000), "test")
    cost = EngineCost(step_s=0.02, prefill_tokens_per_s=4000.0, kv_read_s_per_token=1e-6)
    return SimEngine(batch, cost, world, told.append, lengths, KV_BYTES, stride), lengths


def written(told: list) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in told:
        for one in event.written if isinstance(event, StepDone) else ():
            assert one.start == len(found.setdefault(one.request, []))
            found[one.request] += one.ids
    return found


def two_answers(stride: int) -> tuple[dict[str, list[int]], dict[str, float]]:
    """One sequence begins alone, another comes in: what each wrote, and when each ended."""
    world, told = World(), []
    ends: dict[str, float] = {}
    sim, lengths = engine(world, told, stride)

    def begin(name: str, outputs: int) -> None:
        lengths.set(name, outputs)
        start(sim, name)

    def watch(event) -> None:
        told.append(event)
        ends.update({one.request: world.now() for one in getattr(event, "written", ()) if one.finish})

    sim._sink = watch
    begin("a", 100)
    world.call_later(0.73, lambda: begin("bb", 30))
    world.run(60.0)
    return written(told), ends


def start(sim: SimEngine, name: str) -> None:
    key = Key(name, 1)
    ids = tuple(range(len(name) * 1000, len(name) * 1000 + 190))
    sim.open(OpenSequence(key, ids, len(ids), Sampling(1000, stop_token_ids=(END,)), "", compute_last=True))
    sim.speak(Speak(key))


@pytest.mark.parametrize("stride", [2, 5, 16])
def test_strides_end_where_answers_end_and_where_somebody_comes_in(stride: int) -> None:
    outputs, ends = two_answers(stride)
    assert {name: len(ids) for name, ids in outputs.items()} == {"a": 100, "bb": 30}
    assert all(ids[-1] == END and END not in ids[:-1] for ids in outputs.values())
    assert ends == pytest.approx(two_answers(1)[1], abs=1e-6), "the same steps as one by one"


def test_a_full_pool_stops_strides_but_not_the_engine() -> None:
    world, told = World(), []
    sim, lengths = engine(world, told, 16, pages=8)
    for name in ("a", "bb"):
        lengths.set(name, 80)
        start(sim, name)
    sim._sink = lambda event: (told.append(event), close_what_ended(sim, event))
    world.run(60.0)
    assert {name: len(ids) for name, ids in written(told).items()} == {"a": 80, "bb": 80}


def close_what_ended(sim: SimEngine, event) -> None:
    """An ended sequence keeps its pages until its role closes it."""
    for one in getattr(event, "written", ()):
        if one.finish:
            sim.close(CloseSequence(Key(one.request, one.epoch)))
