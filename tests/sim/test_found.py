"""What storms have found: each kind of mistake as a test of its own, so that no seed has to find it again."""

from typing import Any

import pytest

from pdd.core import messages as msg
from pdd.core.effects import OpenSequence
from pdd.core.events import Heard, SequenceRefused, StepDone
from pdd.core.ids import Epoch, Key, Peer, RequestId, Role
from pdd.core.roles.relay_decode import RelayDecode
from pdd.core.roles.relaying import Pen
from pdd.core.sampling import Sampling
from pdd.core.timeouts import TimeOuts
from pdd.plan.house import House
from pdd.plan.house_parts import EngineSpec, HouseSpec
from tests.sim.scene import prompt

ROUTER = Peer("a", Role.ROUTER, "router", 1)
ME = Peer("a", Role.RELAY, "r1", 1)
CAST = msg.Cast(Peer("a", Role.PREFILL, "p1", 1), ME, Peer("b", Role.MAIN, "m1", 1))


def relay(places: int = 2) -> RelayDecode:
    machine = RelayDecode(ME, msg.WorkerCard("f", 4096, places, 16), TimeOuts(), b"seed")
    machine.start(0.0)
    return machine


def command(name: str, epoch: int, **more: Any) -> Heard:
    made = msg.PrepareRelay(RequestId(name), Epoch(epoch), CAST, (5, 6, 7), 3, Sampling(max_tokens=90), **more)
    return Heard(ROUTER, ME, made)


def test_after_a_refusal_an_older_command_starts_nothing_and_the_same_may_come_again() -> None:
    """A refused epoch left no memory: its predecessor's command, late on the bus, opened a sequence nobody would release."""
    machine = relay()
    machine.handle(command("q", 5), 1.0)
    machine.handle(SequenceRefused(Key(RequestId("q"), Epoch(5)), "full"), 1.0)
    assert not any(isinstance(effect, OpenSequence) for effect in machine.handle(command("q", 4), 1.1))
    assert any(isinstance(effect, OpenSequence) for effect in machine.handle(command("q", 5), 1.2))


def test_relays_that_come_to_their_bound_in_one_step_find_the_place_full() -> None:
    """Each of them was paused in that step, so none counted as running: a full batch in lockstep never felt its bound."""
    machine = relay(places=2)
    names = [RequestId("q1"), RequestId("q2")]
    for name in names:
        machine.handle(command(name, 1, relay_bound=2), 1.0)
        held = machine.held[name]
        held.phase, held.whole, held.out = Pen.RELAYING, True, [1]
    step = StepDone(written=tuple(msg.Written(name, Epoch(1), 1, (4,)) for name in names))
    machine.handle(step, 1.1)
    assert machine.held[names[0]].phase is Pen.PAUSED


@pytest.mark.parametrize("seconds", [4.0, 8.0])
def test_a_router_that_stood_still_loses_nobody_whose_beats_wait_for_it(seconds: float) -> None:
    """It looked at who was silent after the first beat it took, and planned every request anew."""
    house = House(HouseSpec())
    house.run(1.2)
    client = house.submit(prompt(100), 700)
    house.run(1.0)
    assert 0 < len(client.ids) < 100
    house.processes["router"].node.paused_until = house.world.now() + seconds
    assert house.settle()
    assert client.ids == house.baseline(client)
    assert client.complete and client.complete.report.epochs == 1


def test_a_worker_promises_no_longer_context_than_its_pages_hold() -> None:
    """The model allowed 4096 tokens and the pool 384: a request for 398 was taken, and ended early as if that were its limit."""
    small = EngineSpec(pages=24, page_size=16)
    house = House(HouseSpec(engines=dict.fromkeys((Role.PREFILL, Role.RELAY, Role.MAIN), small)))
    house.run(1.2)
    client = house.submit(prompt(239), 159)
    assert client.problem and (client.problem.status, client.problem.code) == (400, "context_length_exceeded")
    assert "384" in client.problem.message
    fits = house.submit(prompt(239), 140)
    assert house.settle() and fits.ids == house.baseline(fits)
