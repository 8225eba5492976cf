"""The simulated line: bytes take their time, in the order that was asked for, and nothing starves."""

import pytest

from pdd.sim.line import Flow, SimLine
from pdd.sim.world import World

RATE = 1e7
UNIT = 1e4  # bytes: what a millisecond carries


class Crossing:
    """Flows over one line, and when all of each had crossed."""

    def __init__(self, **shape) -> None:
        self.world = World()
        self.line = SimLine(self.world, RATE, 0.1, **shape)
        self.done: dict[str, float] = {}
        self.told: dict[str, int] = {}

    def send(self, name: str, count: float, at: float = 0.0, warm_up: bool = False) -> None:
        def begin() -> None:
            flow: Flow = self.line.open(
                lambda: self._progress(name, flow), count * UNIT, self.world.now(), warm_up=warm_up
            )
            self.line.offer(flow, count * UNIT)

        self.world.call_later(at, begin)

    def _progress(self, name: str, flow: Flow) -> None:
        self.told[name] = self.told.get(name, 0) + 1
        if flow.left <= 0:
            self.done[name] = self.world.now()

    def run(self, until: float = 1e4) -> dict[str, float]:
        self.world.run(until)
        return self.done


def test_a_transfer_alone_takes_its_bytes_over_the_rate() -> None:
    crossing = Crossing()
    crossing.send("one", 5000)
    assert crossing.run()["one"] == pytest.approx(5.0, abs=1e-3)
    assert crossing.line.carried == pytest.approx(5000 * UNIT)


def test_a_long_transfer_tells_of_itself_now_and_then() -> None:
    crossing = Crossing()
    crossing.send("one", 5000)
    crossing.run()
    assert 5 <= crossing.told["one"] <= 7


def test_what_is_offered_later_takes_its_own_time() -> None:
    crossing = Crossing()
    crossing.send("one", 1000)
    crossing.run(3.0)
    flow = crossing.line.open(lambda: crossing._progress("two", flow), 3000 * UNIT, crossing.world.now())
    crossing.line.offer(flow, 1000 * UNIT)
    crossing.run(7.0)
    crossing.line.offer(flow, 2000 * UNIT)
    assert flow.left == pytest.approx(2000 * UNIT), "nothing crosses before it was offered"
    assert crossing.run()["two"] == pytest.approx(9.0, abs=0.01)


@pytest.mark.parametrize("order", ["owner", "shortest"])
def test_the_shortest_goes_first_and_the_long_one_loses_only_its_time(order: str) -> None:
    crossing = Crossing(order=order)
    crossing.send("long", 10_000)
    crossing.send("short", 500, at=1.0)
    done = crossing.run()
    assert done["short"] == pytest.approx(1.5, abs=0.1), "the owner leaves a tenth to those who have no turn"
    assert done["long"] == pytest.approx(10.5, abs=0.01)


def test_equal_shares_delay_the_short_one() -> None:
    crossing = Crossing(order="fair")
    crossing.send("long", 10_000)
    crossing.send("short", 500, at=1.0)
    done = crossing.run()
    assert done["short"] == pytest.approx(2.0, abs=0.01)
    assert done["long"] == pytest.approx(10.5, abs=0.01)


@pytest.mark.parametrize("order", ["owner", "shortest"])
def test_nobody_starves_behind_short_ones(order: str) -> None:
    crossing = Crossing(order=order)
    crossing.send("long", 3000)
    for i in range(200):
        crossing.send(f"short{i}", 480, at=0.5 * i)
    done = crossing.run()
    assert done["long"] < 40.0, "each second of waiting counts"


def test_a_flows_ceiling_holds_however_idle_the_line_is() -> None:
    crossing = Crossing(order="fair", flow_bytes_per_s=100.0 * UNIT)
    crossing.send("one", 1000)
    crossing.send("other", 1000)
    done = crossing.run()
    assert done["one"] == pytest.approx(10.0, abs=0.01) and done["other"] == pytest.approx(10.0, abs=0.01)


def test_more_flows_than_allowed_wait_for_a_place() -> None:
    crossing = Crossing(order="fair", flows_max=1)
    for name in ("one", "two", "three"):
        crossing.send(name, 1000)
    assert list(crossing.run().values()) == pytest.approx([1.0, 2.0, 3.0], abs=0.01)


def test_warm_up_comes_after_everything_that_somebody_waits_for() -> None:
    crossing = Crossing()
    crossing.send("warm", 100, warm_up=True)
    crossing.send("wanted", 5000)
    done = crossing.run()
    assert done["wanted"] < done["warm"]


def test_a_cancelled_transfer_frees_the_line_at_once() -> None:
    crossing = Crossing(order="arrival")
    flow = crossing.line.open(lambda: None, 1e6 * UNIT, 0.0)
    crossing.line.offer(flow, 1e6 * UNIT)
    crossing.send("next", 1000)
    crossing.world.call_later(2.0, lambda: crossing.line.cancel(flow))
    assert crossing.run()["next"] == pytest.approx(3.0, abs=0.01)


def test_a_cut_line_carries_nothing_until_it_is_joined() -> None:
    crossing = Crossing()
    crossing.send("one", 1000)
    crossing.world.call_later(0.5, lambda: crossing.line.shape(0.0))
    crossing.world.call_later(4.5, lambda: crossing.line.shape(RATE))
    assert crossing.run()["one"] == pytest.approx(5.0, abs=0.01)


def test_an_unknown_order_is_told() -> None:
    with pytest.raises(ValueError, match="owner, shortest, fair, arrival"):
        Crossing(order="random")
