"""Scenes in which somebody is lost, slow or in the way; and cuts. Each needs one rule of the protocol."""

from pdd.core import events as ev
from pdd.core import messages as msg
from pdd.core.cost import EngineCost
from pdd.core.ids import Peer, Role
from pdd.core.messages import Written
from pdd.core.singular import SingularSettings
from pdd.core.timeouts import TimeOuts
from pdd.plan.house_parts import EngineSpec
from pdd.plan.laws import Violation
from pdd.plan.stages import Stage
from tests.sim.scene import Q, Scene, prompt

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


# -- the pen -----------------------------------------------------------------------------------------------------------


def the_token_of_a_long_step_comes_after_the_yield() -> None:
    """P hosts the relay and computes another's prompt: a Yield does not wait for a step of more than a second."""
    slow = EngineSpec(
        chunk_tokens=256, cost=EngineCost(step_s=0.02, prefill_tokens_per_s=200.0, import_bytes_per_s=1e9)
    )
    calm = EngineSpec(cost=EngineCost(step_s=0.3, prefill_tokens_per_s=2000.0, import_bytes_per_s=1e9))
    scene = Scene(relays=0, engines={Role.PREFILL: slow, Role.MAIN: calm})
    scene.ask(outputs=20)
    scene.until_spoken(3)
    scene.house.submit(prompt(250)[::-1], 2, name="other", route="P-MD")
    scene.ends(gap_s=2.0)
    scene.in_epoch(1)
    late = [what for what in scene.house.processes["p1"].node.history if isinstance(what[1], ev.StepDone)]
    fence = scene.client.complete and scene.client.complete.report.fence
    if not any(part.start == fence for _, step in late for part in step.written if part.request == Q):
        raise Violation("scene", f"nothing was written at the fence, {fence}")
