"""Small scripted worlds, each with one fault that one rule answers. Without that rule a request waits longer than the rule allows.

A scene raises Violation where the client waits longer than its bound, gets anything else than one engine would write, where
somebody keeps what it took, or where more was done than was needed.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pdd.adapters.kv_memory_lines import Parcel, flipped
from pdd.core import events as ev
from pdd.core import messages as msg
from pdd.core.cost import EngineCost
from pdd.core.effects import Effect
from pdd.core.ids import Peer, RequestId, Role
from pdd.core.messages import Message, Written
from pdd.core.singular import SingularSettings
from pdd.core.timeouts import TimeOuts
from pdd.core.wire import ChunkFrame
from pdd.plan.faults import Faults, lose
from pdd.plan.house import Client, EngineSpec, House, HouseSpec
from pdd.plan.laws import Laws, Violation
from pdd.plan.stages import Stage, member, stage
from pdd.plan.story import Story
from pdd.sim.world import Node

Q = RequestId("q1")
Scenery = Callable[[], None]


def prompt(n: int) -> tuple[int, ...]:
    return tuple((7919 + i * 104_729) % 31_000 + 3 for i in range(n))


class Scene:
    """A house whose workers are known, and one request in it, whose story is told."""

    def __init__(self, **changes: Any) -> None:
        self.laws, self.story = Laws(), Story(Q)
        self.house = House(replace(HouseSpec(), **changes), 0, self._check)
        self.faults = Faults(self.house, ends_at=1e9)
        self.house.run(1.2)  # the first beats

    def _check(self, node: Node, event: ev.Event, effects: list[Effect]) -> None:
        self.story.check(node, event, effects)
        self.laws.check(node, event, effects)

    @property
    def now(self) -> float:
        return self.house.world.now()

    def do(self, what: str, act: Callable[[], None]) -> None:
        """Tell it, and do it."""
        self.story.tell(self.now, what)
        act()

    def ask(self, tokens: int = 200, outputs: int = 100, route: str = "P-RLD-MD", **more: Any) -> Client:
        self.client = self.house.submit(prompt(tokens), outputs, name=Q, route=route, **more)
        return self.client

    def until(self, at: Stage) -> None:
        if not self.house.world.run(self.now + 30.0, lambda: stage(self.house, Q) is at):
            raise Violation("scene", f"never came to: {at}")

    def until_spoken(self, outputs: int) -> None:
        if not self.house.world.run(self.now + 30.0, lambda: len(self.client.ids) >= outputs):
            raise Violation("scene", f"never came to {outputs} outputs")

    def player(self, role: Role) -> str:
        name = member(self.house, Q, role)
        if name is None:
            raise Violation("scene", f"nobody is {role}")
        return name

    def lose(self, name: str, *kinds: type[Message], to: str = "", seconds: float = 1e9, first: int = 1 << 30) -> None:
        """What `name` sends of these kinds, for some seconds or for so many of them."""
        until, left = self.now + seconds, [first]

        def lost(receiver: Peer | None, message: Message) -> bool:
            named = to in ("", receiver.name if receiver else "")
            hit = isinstance(message, kinds) and named and self.now < until and left[0] > 0
            left[0] -= hit
            return hit

        lose(self.house, name, lost)

    def heard(self, name: str, kind: type[Message], sender: str) -> int:
        history = self.house.processes[name].node.history
        heard = [event for _, event in history if isinstance(event, ev.Heard) and event.sender.name == sender]
        return sum(isinstance(event.message, kind) for event in heard)

    def noted(self, name: str) -> float:
        return sum(p.notes.total(name) for p in self.house.processes.values())

    # -- the verdict --------------------------------------------------------------------------------------------------

    def ends(self, gap_s: float, within_s: float = 60.0) -> None:
        """The client has all, never waited longer than `gap_s`, and everything is given back."""
        self.house.settle(within_s)
        client, whole = self.client, self.house.baseline(self.client)
        if client.finish is None or client.ids != whole:
            raise Violation("the same ids", f"{len(client.ids)} of {len(whole)}, {client.problem}")
        asked_at = self.laws.submitted_at[Q]
        gap = max(after - before for before, after in pairwise([asked_at, *client.spoken_at]))
        if gap > gap_s:
            raise Violation("bounded wait", f"{gap:.2f} s without an output, more than {gap_s}")
        if left := self.house.leftovers():
            raise Violation("given back", str(left))

    def in_epoch(self, epochs: int) -> None:
        report = self.client.complete
        assert report is not None
        if report.report.epochs != epochs:
            raise Violation("needless plan", f"{report.report.epochs} epochs, not {epochs}")


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


# -- losses ------------------------------------------------------------------------------------------------------------


def a_line_that_never_heals_ends_the_request() -> None:
    """Without a stall's end plan would never follow, and plan after plan brings one output of P."""
    scene = Scene(relays=0)
    scene.faults.cut_line("a", "b", 1e6)
    client, given = scene.ask(route="P-MD"), TimeOuts()
    scene.house.settle(given.give_up_s + 60.0)
    if not client.ended:
        raise Violation("every wait ends", f"{len(client.ids)} outputs")
    if left := scene.house.leftovers():
        raise Violation("given back", str(left))


def a_long_step_is_no_stall() -> None:
    """One step of prefill takes 15 s, in which nothing can be reported: patience grows until one plan is long enough."""
    slow = EngineSpec(chunk_tokens=256, cost=EngineCost(step_s=0.02, prefill_tokens_per_s=10.0))
    scene = Scene(engines={Role.PREFILL: slow})
    scene.ask(tokens=150, outputs=3, route="P-MD")
    scene.ends(gap_s=65.0, within_s=150.0)


def a_request_that_a_worker_gave_up_is_lost_at_once() -> None:
    """The router hears m1, m1 does not hear the router."""
    scene = Scene(mains=2)
    scene.ask(tokens=100, outputs=900, route="P-MD")
    scene.until(Stage.MAIN)
    scene.faults.deafen(scene.player(Role.MAIN), TimeOuts().lease_s + 0.6)
    scene.ends(gap_s=3.0)


def main_decode_may_die_with_the_pen_that_only_a_beat_told_of() -> None:
    scene = Scene(mains=2)
    scene.lose("r1", msg.Yield, to="router", seconds=30.0)
    scene.ask()
    scene.until(Stage.YIELDED)
    name = scene.player(Role.MAIN)
    scene.lose(name, msg.Tokens, seconds=30.0)
    scene.house.run(1.0)
    scene.faults.crash(name)
    scene.ends(gap_s=6.0)


def two_seconds_without_beats_cost_nothing() -> None:
    scene = Scene()
    scene.ask(outputs=300)
    scene.until(Stage.RELAY)
    for name in ("p1", "r1", "m1"):
        scene.faults.lose_beats(name, 2.2)
    scene.ends(gap_s=1.5)
    scene.in_epoch(1)


def a_dead_router_frees_its_workers() -> None:
    scene = Scene()
    scene.ask(outputs=2000)
    scene.until(Stage.RELAY)
    scene.faults.crash("router")
    scene.client.gone = True
    scene.house.settle(TimeOuts().lease_s + 2.0)
    if left := scene.house.leftovers():
        raise Violation("given back", str(left))


def kv_of_an_ended_epoch_is_found_again() -> None:
    """MD dies after the hand-over: the next cast computes nothing that is still here."""
    scene = Scene()
    scene.ask(tokens=256)
    scene.until(Stage.MAIN)
    scene.faults.crash("m1")
    scene.ends(gap_s=8.0)
    report = scene.client.complete
    assert report is not None
    if report.report.epochs == 1 or report.report.hit[Role.PREFILL.value] < 256:
        raise Violation("found again", f"hits {report.report.hit} in epoch {report.report.epochs}")


# -- the relay's bound, and cuts ---------------------------------------------------------------------------------------


def a_paused_relay_goes_on_when_main_decode_does_not_come() -> None:
    small = EngineSpec(max_sequences=2)
    scene = Scene(relay_bound=8, engines={Role.PREFILL: small, Role.RELAY: small})
    scene.faults.stall_line("a", "b", 20.0)
    scene.house.submit(prompt(150), 300, name="other", route="P-RLD-MD")  # a crowd, for two places
    scene.ask(outputs=60)
    scene.ends(gap_s=TimeOuts().relay_wait_s + 1.0)
    scene.in_epoch(1)


SINGULAR = SingularSettings(cap=1.0, gap=2.0)


def a_long_prompt_with_a_short_answer_is_cut() -> None:
    scene = Scene(line_bytes_per_s=500.0, singular=SINGULAR)
    scene.ask(tokens=300, outputs=8)
    scene.ends(gap_s=1.5)
    crossed = scene.house.lines.bytes_carried["a", "b"]
    whole = 300 * scene.house.spec.kv_shape.bytes_per_token
    if crossed > whole / 2 or not scene.noted("pdd_cuts_total"):
        raise Violation("singular", f"{crossed} of {whole} bytes crossed")


def a_cut_is_made_by_the_relays_leave_only() -> None:
    """The router wants a cut just when RLD yields: somebody must still speak."""
    scene = Scene(line_bytes_per_s=4000.0, singular=SINGULAR)
    scene.ask(tokens=200, outputs=40)
    scene.ends(gap_s=1.5)
    scene.in_epoch(1)


# -- strangers ---------------------------------------------------------------------------------------------------------


def a_stranger_writes_nothing() -> None:
    scene = Scene()
    scene.ask()
    scene.until(Stage.RELAY)
    router, at = scene.house.processes["router"], len(scene.client.ids)
    stranger = Peer("b", Role.MAIN, "m9", 1)
    forged = msg.Tokens((Written(Q, router.node.machine.courses[Q].epoch, at, (5,)),))  # type: ignore[attr-defined]
    router.node.post(ev.Heard(stranger, router.me, forged))
    scene.ends(gap_s=1.5)


SCENES: list[Scenery] = [
    a_lost_command_is_repeated,
    a_lost_ticket_is_repeated,
    a_lost_main_ready_is_repeated_while_the_relay_is_paused,
    a_lost_yield_is_repeated_by_the_relay,
    a_yield_that_only_the_router_heard_reaches_main_decode,
    a_lost_yield_is_repeated,
    an_answered_yield_is_not_repeated,
    the_last_frame_is_asked_for,
    whoever_knows_is_asked,
    chunks_of_an_older_epoch_land_nowhere,
    a_chunk_that_came_damaged_is_had_again,
    a_line_that_never_heals_ends_the_request,
    a_long_step_is_no_stall,
    a_request_that_a_worker_gave_up_is_lost_at_once,
    main_decode_may_die_with_the_pen_that_only_a_beat_told_of,
    two_seconds_without_beats_cost_nothing,
    a_dead_router_frees_its_workers,
    kv_of_an_ended_epoch_is_found_again,
    a_paused_relay_goes_on_when_main_decode_does_not_come,
    a_long_prompt_with_a_short_answer_is_cut,
    a_cut_is_made_by_the_relays_leave_only,
    a_stranger_writes_nothing,
]
