"""Scenes in which a message is lost, late or false. Each needs one rule: without it a request waits longer than the rule allows."""

from pdd.adapters.kv_memory_lines import Parcel, flipped
from pdd.core import events as ev
from pdd.core import messages as msg
from pdd.core.cost import EngineCost
from pdd.core.ids import Epoch, Peer, Role
from pdd.core.messages import Message, Written
from pdd.core.wire import ChunkFrame
from pdd.plan.faults import lose
from pdd.plan.house_parts import EngineSpec
from pdd.plan.laws import Violation
from pdd.plan.stages import Stage
from tests.sim.scene import Q, Scene

# -- answered messages are not lost for good ---------------------------------------------------------------------------


def a_lost_command_is_repeated() -> None:
    scene = Scene()
    scene.lose("router", msg.PrepareMain, first=1)
    scene.ask(route="P-MD")
    scene.ends(gap_s=2.5)
    scene.in_epoch(1)


def a_lost_ticket_is_repeated() -> None:
    scene = Scene()
    scene.lose("m1", msg.Ticket, first=1)
    scene.ask(route="P-MD")
    scene.ends(gap_s=3.0)
    scene.in_epoch(1)


def a_lost_main_ready_is_repeated_while_the_relay_is_paused() -> None:
    """MD has nothing to extend, so no progress is reported either."""
    scene = Scene()
    scene.lose("m1", msg.MainReady, first=1)
    scene.ask(handover_after=1)
    scene.ends(gap_s=2.5)


def a_lost_yield_is_repeated_by_the_relay() -> None:
    """Nobody else can: the router has not heard it, and MD's reports do not reach RLD."""
    scene = Scene()
    scene.lose("r1", msg.Yield, first=2)
    scene.ask()
    scene.until(Stage.YIELDED)
    scene.lose("m1", msg.MainReady, seconds=6.0)
    scene.ends(gap_s=1.5)


def a_yield_that_only_the_router_heard_reaches_main_decode() -> None:
    scene = Scene()
    scene.lose("r1", msg.Yield, to="m1", seconds=8.0)
    scene.ask()
    scene.ends(gap_s=1.5)


def a_lost_yield_is_repeated() -> None:
    scene = Scene()
    scene.lose("r1", msg.Yield, first=2)
    scene.ask()
    scene.ends(gap_s=1.5)


def an_answered_yield_is_not_repeated() -> None:
    """MD takes seconds to extend; RLD knows that it has the Yield."""
    slow = EngineSpec(cost=EngineCost(step_s=2.5, prefill_tokens_per_s=2000.0, import_bytes_per_s=1e9))
    scene = Scene(engines={Role.MAIN: slow})
    scene.ask(outputs=60)
    scene.until(Stage.MAIN)
    scene.house.run(2.0)
    if (times := scene.heard("m1", msg.Yield, "r1")) > 2:  # two: a report of MD may cross the first
        raise Violation("answered is answered", f"{times} times the same Yield")


def the_last_frame_is_asked_for() -> None:
    """No gap shows that it was lost."""
    scene = Scene()
    scene.ask(outputs=40, route="P-MD")
    scene.until_spoken(38)
    scene.lose("m1", msg.Tokens, first=2)
    scene.ends(gap_s=2.0)
    scene.in_epoch(1)


def whoever_knows_is_asked() -> None:
    """RLD speaks and the router does not hear it; MD follows, and knows."""
    scene = Scene(line_bytes_per_s=100_000.0, policy="catch_up")
    scene.ask(outputs=200, handover_after=150)
    scene.until(Stage.CATCH_UP)
    scene.lose("r1", msg.Tokens, to="router", seconds=2.6)
    scene.ends(gap_s=2.0)


def _in_second_epoch() -> Scene:
    """P dies at work; RLD and MD play on with another P."""
    scene = Scene(prefills=2)
    scene.ask()
    scene.until(Stage.PREFILL)
    scene.faults.crash(scene.player(Role.PREFILL))
    scene.until(Stage.RELAY)
    return scene


def late_outputs_of_an_older_epoch_reach_nobody() -> None:
    scene = _in_second_epoch()
    router, relay = scene.house.processes["router"], scene.house.processes["r1"]
    late = msg.Tokens((Written(Q, Epoch(1), len(scene.client.ids) + 3, (5, 5)),))
    router.node.post(ev.Heard(relay.me, router.me, late))
    scene.ends(gap_s=4.0)
    scene.in_epoch(2)


def a_late_command_of_an_older_epoch_starts_nothing() -> None:
    scene = _in_second_epoch()
    router, relay = scene.house.processes["router"], scene.house.processes["r1"]
    first = next(message for message in scene.house.heard("r1") if isinstance(message, msg.PrepareRelay))
    relay.node.post(ev.Heard(router.me, relay.me, first))
    scene.ends(gap_s=4.0)
    scene.in_epoch(2)


def a_ticket_of_a_former_life_is_void() -> None:
    """MD is another peer by now; what its last life wrote comes late."""
    scene = Scene(line_bytes_per_s=1000.0)
    scene.ask(route="P-MD")
    scene.until(Stage.TRANSFER)
    scene.faults.crash("m1")
    scene.faults.restart("m1")
    scene.until(Stage.PREFILL)
    prefill = scene.house.processes["p1"]
    heard = [event for _, event in prefill.node.history if isinstance(event, ev.Heard)]
    prefill.node.post(next(event for event in heard if isinstance(event.message, msg.Ticket)))
    scene.ends(gap_s=8.0)
    scene.in_epoch(2)


def chunks_of_an_older_epoch_land_nowhere() -> None:
    """RLD dies, so P and MD get a new epoch while chunks of the old one are on the line; P is slow to notice."""
    scene = Scene(line_bytes_per_s=1000.0)
    scene.ask()
    scene.until(Stage.PREFILL)
    scene.faults.crash("r1")
    scene.until(Stage.TRANSFER)
    scene.faults.pause("p1", 2.0)
    scene.faults.restart("r1")
    scene.ends(gap_s=8.0)


def a_chunk_that_came_damaged_is_had_again() -> None:
    """The last one, and the ticket that asks for it is lost: P may not take the transfer for done when its end is answered."""
    scene = Scene()
    spoilt, lost = [], []

    def spoil_last(parcel: Parcel) -> list[Parcel]:
        frame, payload, _ = parcel
        if isinstance(frame, ChunkFrame) and payload is not None and frame.stop == 200 and not spoilt:
            spoilt.append(frame)
            return [parcel._replace(payload=flipped(payload, 0))]
        return [parcel]

    def lose_first(to: Peer | None, message: Message) -> bool:
        if lost or not isinstance(message, msg.Ticket) or message.serial != 1:
            return False
        lost.append(message)
        return True

    scene.faults.damage_lines(spoil_last)
    lose(scene.house, "m1", lose_first)
    scene.ask(route="P-MD")
    scene.ends(gap_s=4.0)
    scene.in_epoch(1)
    if not (spoilt and lost):
        raise Violation("scene", f"spoilt {spoilt}, lost {lost}")
