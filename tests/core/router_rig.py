"""A router with workers that beat, its clock, and what it asked for: for the tests of its laws."""

from typing import Any

from pdd.core import messages as msg
from pdd.core.effects import Complete, Count, Deliver, Effect, Reject, Send
from pdd.core.events import Heard, RequestSubmitted, TimerFired
from pdd.core.ids import Epoch, Peer, RequestId, Role
from pdd.core.roles.router import Router
from pdd.core.routing import RoutingSettings
from pdd.core.sampling import Finish, Sampling
from pdd.core.timeouts import TimeOuts

Q = RequestId("q")
E1 = Epoch(1)
ME = Peer("a", Role.ROUTER, "router", 1)
P1, P2 = Peer("a", Role.PREFILL, "p1", 1), Peer("a", Role.PREFILL, "p2", 1)
R1, R2 = Peer("a", Role.RELAY, "r1", 1), Peer("a", Role.RELAY, "r2", 1)
M1, M2 = Peer("b", Role.MAIN, "m1", 1), Peer("b", Role.MAIN, "m2", 1)
CARD = msg.WorkerCard("f", 4096, 8, 16)
T = TimeOuts()
PROMPT = tuple(range(5, 45))
WHOLE = [900 + i for i in range(30)]


class Rig:
    """A router that has heard its workers beat, and all it has asked for."""

    def __init__(self, *workers: Peer, **settings: Any) -> None:
        routing = RoutingSettings(line_bytes_per_s=100.0, relay_price_s=0.1)  # the line is slow: RLD is worth it
        self.router = Router(ME, "f", T, routing, **settings)
        self.now, self.number = 0.0, 0
        self.workers = list(workers or (P1, R1, M1))
        self.effects: list[Effect] = self.router.start(0.0)
        self.beat()

    def hear(self, sender: Peer, message: msg.Message, to: Peer | None = ME) -> list[Effect]:
        return self.do(Heard(sender, to, message))

    def do(self, event: Any) -> list[Effect]:
        new = self.router.handle(event, self.now)
        self.effects += new
        return new

    def beat(self, listed: dict[Peer, tuple[msg.HeldRequest, ...]] | None = None) -> None:
        """Everyone beats; whoever is in the cast lists the request, unless told otherwise."""
        self.number += 1
        for worker in self.workers:
            default = (self.holds(worker),) if worker in self.members() else ()
            held = default if listed is None else listed.get(worker, default)
            self.hear(worker, msg.Beat(self.number, CARD, held, msg.EngineLoad()), None)

    def wait(self, seconds: float, *, beating: bool = True) -> list[Effect]:
        """Time goes by; returns what it brought."""
        before, until = len(self.effects), self.now + seconds
        while self.now < until:
            self.now = round(self.now + T.tick_s, 3)
            if beating and round(self.now % T.beat_s, 3) in (0.0, T.beat_s):
                self.beat()
            self.do(TimerFired())
        return self.effects[before:]

    def members(self) -> list[Peer]:
        course = self.router.courses.get(Q)
        return list(course.cast.values()) if course else []

    def holds(self, peer: Peer) -> msg.HeldRequest:
        course = self.router.courses[Q]
        return msg.HeldRequest(Q, course.epoch, ME, "any", False, len(course.out), None, 1)

    def submit(self, max_tokens: int = 30, **more: Any) -> list[Effect]:
        return self.do(RequestSubmitted(Q, PROMPT, Sampling(max_tokens), **{"route": "P-RLD-MD", **more}))

    def accept(self) -> None:
        for peer in self.members():
            self.hear(peer, msg.Accepted(Q, self.router.courses[Q].epoch, 0, self.number))

    # -- what came of it ----------------------------------------------------------------------------------------------

    def delivered(self) -> list[int]:
        """All the client has; each index came once and in order."""
        ids: list[int] = []
        for effect in self.effects:
            if isinstance(effect, Deliver):
                assert effect.written.start == len(ids)
                ids.extend(effect.written.ids)
        return ids

    def ends(self) -> list[Effect]:
        return [effect for effect in self.effects if isinstance(effect, Complete | Reject)]


def sent(effects: list[Effect], kind: type[msg.Message]) -> list[tuple[Peer, Any]]:
    return [(e.to, e.message) for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def receivers(effects: list[Effect], kind: type[msg.Message]) -> list[Peer]:
    return [to for to, _ in sent(effects, kind)]


def piece(start: int, stop: int, epoch: Epoch = E1) -> msg.Written:
    finish = Finish("length") if stop == len(WHOLE) else None
    return msg.Written(Q, epoch, start, tuple(WHOLE[start:stop]), finish=finish)


def frame(start: int, stop: int, *, own: bool = True, epoch: Epoch = E1) -> msg.Tokens:
    return msg.Tokens((piece(start, stop, epoch),), own=own)


def dropped(effects: list[Effect], name: str = "pdd_tokens_dropped_total") -> list[str]:
    return [e.labels[0][1] for e in effects if isinstance(e, Count) and e.name == name]


def running(*workers: Peer, **settings: Any) -> Rig:
    rig = Rig(*workers, **settings)
    rig.submit()
    rig.accept()
    return rig
