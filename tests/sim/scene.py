"""A house, one request in it, and what a scene does to them. A scene raises Violation where the client waits longer than its bound,
gets anything else than one engine would write, or where somebody keeps what it took.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pdd.core import events as ev
from pdd.core.effects import Effect
from pdd.core.ids import Peer, RequestId, Role
from pdd.core.messages import Message
from pdd.plan.faults import Faults, lose
from pdd.plan.house import House
from pdd.plan.house_parts import Client, HouseSpec
from pdd.plan.laws import Laws, Violation
from pdd.plan.stages import Stage, member, stage
from pdd.plan.story import Story
from pdd.sim.world import Node

Q = RequestId("q1")


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
