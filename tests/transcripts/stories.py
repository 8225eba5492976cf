"""The main stories of a request, played in a house. What a docstring says, the transcript beside shows event by event."""

from collections.abc import Callable
from functools import partial

from pdd.core import messages as msg
from pdd.core.ids import Role
from pdd.core.singular import SingularSettings
from pdd.plan.stages import Stage
from tests.sim.scene import Q, Scene

QUICK = {"line_bytes_per_s": 20_000.0}  # little is written while the KV crosses


def one_shot_hand_over() -> Scene:
    """RLD yields as soon as MD holds the prompt; MD extends over what RLD wrote, and speaks from the fence."""
    scene = Scene()
    scene.ask()
    scene.ends(gap_s=1.0)
    return scene


def catch_up_hand_over() -> Scene:
    """RLD goes on while MD extends behind it, and yields when the backlog is small."""
    scene = Scene(policy="catch_up")
    scene.ask()
    scene.ends(gap_s=0.5)
    return scene


def main_decode_dies_before_the_yield() -> Scene:
    """Nothing is lost: RLD goes on, the dead MD leaves the cast."""
    scene = Scene()
    scene.ask(outputs=300)
    scene.until(Stage.RELAY)
    scene.do("m1 dies", partial(scene.faults.crash, "m1"))
    scene.ends(gap_s=1.0)
    return scene


def main_decode_dies_after_the_yield() -> Scene:
    """The router raises the epoch: a new cast starts from what the client has, and finds the KV in its caches."""
    scene = Scene(**QUICK)
    scene.ask()
    scene.until(Stage.MAIN)
    scene.do("m1 dies", partial(scene.faults.crash, "m1"))
    scene.ends(gap_s=5.0)
    return scene


def relay_dies_before_the_yield() -> Scene:
    """Its next life is another peer: the router hears it beat, and plans again. What P had computed is still there."""
    scene = Scene()
    scene.ask()
    scene.until_spoken(20)
    scene.do("r1 dies", partial(scene.faults.crash, "r1"))
    scene.house.run(0.5)
    scene.do("r1 is back", partial(scene.faults.restart, "r1"))
    scene.ends(gap_s=3.0)
    return scene


def prefill_dies_at_work() -> Scene:
    """Another P takes over; the receivers start with an empty half."""
    scene = Scene(prefills=2, **QUICK)
    scene.ask(tokens=400, outputs=30)
    scene.until(Stage.PREFILL)
    name = scene.player(Role.PREFILL)
    scene.do(f"{name} dies", partial(scene.faults.crash, name))
    scene.ends(gap_s=5.0)
    return scene


def line_is_cut_during_the_transfer() -> Scene:
    """What landed is kept: the next ticket names what is missing."""
    scene = Scene()
    scene.ask(outputs=200)
    scene.until_spoken(20)
    scene.do("the line is cut for 2 s", partial(scene.faults.cut_line, "a", "b", 2.0))
    scene.ends(gap_s=1.0)
    return scene


def a_yield_is_lost() -> Scene:
    """Both copies are; RLD repeats it, and MD's reports ask for it."""
    scene = Scene(**QUICK)
    scene.lose("r1", msg.Yield, first=2)
    scene.ask(outputs=40)
    scene.ends(gap_s=1.0)
    return scene


def a_token_frame_is_lost() -> Scene:
    """The gap shows, and the whole cast is asked: whoever knows an id answers."""
    scene = Scene(**QUICK)
    scene.ask(outputs=40)
    scene.until_spoken(6)
    scene.do("r1's next frame to the router is lost", partial(scene.lose, "r1", msg.Tokens, to="router", first=1))
    scene.ends(gap_s=1.5)
    return scene


def a_cut_is_promised() -> Scene:
    """A long prompt with a short answer: RLD will be done first, promises never to yield, and the transfer ends."""
    scene = Scene(line_bytes_per_s=500.0, singular=SingularSettings(cap=1.0, gap=2.0))
    scene.ask(tokens=300, outputs=12)
    scene.ends(gap_s=1.0)
    return scene


def a_cut_is_denied() -> Scene:
    """The router asks too late: RLD has yielded. MD stays."""
    scene = Scene(line_bytes_per_s=20_000.0, singular=SingularSettings(cap=1.0, gap=2.0))
    scene.lose("r1", msg.Yield, to="router", first=1)
    scene.ask(outputs=40)
    scene.until(Stage.YIELDED)
    router = scene.house.processes["router"]
    relay = scene.house.processes["r1"]
    epoch = router.node.machine.courses[Q].epoch  # type: ignore[attr-defined]
    assert router.node.ports
    scene.do("the router asks for a cut", partial(router.node.ports.bus.send, relay.me, msg.Cut(Q, epoch), ""))
    scene.ends(gap_s=1.5)
    return scene


def a_client_leaves() -> Scene:
    """Everybody is told, and gives everything back."""
    scene = Scene()
    client = scene.ask()
    scene.until_spoken(20)
    scene.do("the client leaves", partial(scene.house.leave, client))
    assert scene.house.settle(5.0)
    return scene


def prefill_hosts_the_relay() -> Scene:
    """There is no RLD: P goes on from token 1 on the pages that it wrote."""
    scene = Scene(relays=0, **QUICK)
    scene.ask(outputs=40)
    scene.ends(gap_s=1.0)
    return scene


STORIES: dict[str, Callable[[], Scene]] = {
    story.__name__: story
    for story in (
        one_shot_hand_over,
        catch_up_hand_over,
        main_decode_dies_before_the_yield,
        main_decode_dies_after_the_yield,
        relay_dies_before_the_yield,
        prefill_dies_at_work,
        line_is_cut_during_the_transfer,
        a_yield_is_lost,
        a_token_frame_is_lost,
        a_cut_is_promised,
        a_cut_is_denied,
        a_client_leaves,
        prefill_hosts_the_relay,
    )
}
