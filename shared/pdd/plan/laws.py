"""The laws of the protocol, watched at every machine of a house after every event. A broken one raises Violation at once.

Nothing here looks into a role's decisions: only at events, effects, and what each worker says it holds.
"""

from dataclasses import dataclass, field
from typing import Any

from ..core import effects as fx
from ..core import events as ev
from ..core import messages as msg
from ..core.ids import Epoch, Key, Peer, RequestId, Role, TransferId
from ..core.roles.prefill import Phase as PrefillPhase
from ..core.roles.router import Router
from ..core.roles.worker import Worker
from ..sim.world import Node


class Violation(AssertionError):
    """A law does not hold. `law` is its name; the message says where."""

    def __init__(self, law: str, text: str) -> None:
        super().__init__(f"{law}: {text}")
        self.law = law


@dataclass(slots=True)
class Written:
    """One index of one epoch: who wrote it, and what."""

    writer: Peer
    token: int


@dataclass(slots=True)
class Laws:
    written: dict[Key, dict[int, Written]] = field(default_factory=dict)
    fences: dict[Key, int] = field(default_factory=dict)
    stops: dict[Key, int] = field(default_factory=dict)  # outputs in all, once somebody wrote the last
    promised: dict[Key, None] = field(default_factory=dict)  # never to yield
    opened: dict[tuple[Peer, RequestId], Epoch] = field(default_factory=dict)
    ended: dict[tuple[Peer, RequestId], Epoch] = field(default_factory=dict)
    transfers: dict[tuple[TransferId, Epoch], None] = field(default_factory=dict)
    submitted_at: dict[RequestId, float] = field(default_factory=dict)
    ended_at: dict[RequestId, float] = field(default_factory=dict)

    def check(self, node: Node, event: ev.Event, effects: list[fx.Effect]) -> None:
        machine = node.machine
        if isinstance(machine, Worker):
            self._at_worker(machine, event, effects)
        elif isinstance(machine, Router):
            self._at_router(machine, event, effects)

    # -- at a worker --------------------------------------------------------------------------------------------------

    def _at_worker(self, machine: Worker[Any], event: ev.Event, effects: list[fx.Effect]) -> None:
        for held in machine.held.values():
            if held.fence is not None:
                self._fenced(held.key, held.fence, machine.me)
        for effect in effects:
            match effect:
                case fx.Send(_, msg.Tokens(parts, own=True)):
                    for part in parts:
                        self._wrote(machine, part)
                case fx.Send(_, msg.CutAnswer(request, epoch, promised=True)):
                    self._promised(Key(request, epoch))
                case fx.Send(_, msg.Released(request, epoch)):
                    self.ended[machine.me, request] = max(epoch, self.ended.get((machine.me, request), epoch))
                case fx.OpenSequence(key):
                    self._opens(machine, key)
                case fx.CloseSequence(key):
                    self._closes(machine, key)
                case fx.OpenTransfer():
                    self._sends(machine, effect)
        if isinstance(event, ev.KvLanded | ev.KvClosed):
            self._landed(machine, event.transfer)

    def _fenced(self, key: Key, fence: int, who: Peer) -> None:
        known = self.fences.get(key)
        if known is None:
            self.fences[key] = fence
            if key in self.stops:
                raise Violation("the end", f"{who} yields {key} after its last output")
            if key in self.promised:
                raise Violation("promise", f"{who} yields {key} after it promised not to")
            beyond = [
                i for i, one in self.written.get(key, {}).items() if i >= fence and one.writer.role is not Role.MAIN
            ]
            if beyond:
                raise Violation("fence", f"{key} has {beyond} before {who} yields at {fence}")
        elif known != fence:
            raise Violation("one fence", f"{key} has {known}, and {fence} at {who}")

    def _promised(self, key: Key) -> None:
        self.promised[key] = None
        if key in self.fences:
            raise Violation("promise", f"{key} was yielded at {self.fences[key]} and promised to stay")

    def _wrote(self, machine: Worker[Any], part: msg.Written) -> None:
        me, key = machine.me, Key(part.request, part.epoch)
        known, fence = self.written.setdefault(key, {}), self.fences.get(key)
        relayed = self._is_relayed(machine, key)
        for index, token in enumerate(part.ids, part.start):
            before = known.setdefault(index, Written(me, token))
            if before.writer != me:
                raise Violation("one writer", f"index {index} of {key}: {before.writer} and {me}")
            if before.token != token:
                raise Violation("one writer", f"index {index} of {key} is {before.token} and {token} at {me}")
            if index >= self.stops.get(key, index + 1):
                raise Violation("the end", f"{me} wrote index {index} of {key}, which has {self.stops[key]} outputs")
            if relayed and (me.role is not Role.MAIN) == (fence is not None and index >= fence):
                raise Violation("fence", f"{me} wrote index {index} of {key}, whose fence is {fence}")
        if part.finish:
            self.stops[key] = part.stop

    @staticmethod
    def _is_relayed(machine: Worker[Any], key: Key) -> bool:
        held = machine.held.get(key.request)
        return held is not None and held.key == key and None not in (held.command.cast.relay, held.command.cast.main)

    def _opens(self, machine: Worker[Any], key: Key) -> None:
        """An epoch never comes back to a worker, and none after its end. A refused command may come again."""
        me, which = machine.me, (machine.me, key.request)
        if me not in machine.held[key.request].command.cast.members():
            raise Violation("in the cast", f"{me} opens {key}, whose cast is without it")
        if key.epoch < self.opened.get(which, key.epoch):
            raise Violation("epochs rise", f"{me} opens {key} after epoch {self.opened[which]}")
        if which in self.ended and key.epoch <= self.ended[which]:
            raise Violation("ended is ended", f"{me} opens {key} after the release of epoch {self.ended[which]}")
        self.opened[which] = key.epoch

    @staticmethod
    def _closes(machine: Worker[Any], key: Key) -> None:
        held = machine.held.get(key.request)
        if held and held.key == key and held.phase is not PrefillPhase.SENT:
            raise Violation("KV is kept", f"{machine.me} gives up the KV of {key} in {held.phase.name}")

    def _sends(self, machine: Worker[Any], effect: fx.OpenTransfer) -> None:
        held = machine.held.get(effect.key.request)
        if held is None or effect.receiver not in held.command.cast.members():
            raise Violation("KV to the cast", f"{machine.me} sends {effect.key} to {effect.receiver}")
        self.transfers[effect.transfer, effect.key.epoch] = None

    def _landed(self, machine: Worker[Any], transfer: TransferId) -> None:
        held = machine.by_transfer.get(transfer)
        if held and (transfer, held.epoch) not in self.transfers:
            raise Violation("KV of its epoch", f"{machine.me} takes KV for {held.key} that nobody sent in this epoch")

    # -- at the router ------------------------------------------------------------------------------------------------

    def _at_router(self, machine: Router, event: ev.Event, effects: list[fx.Effect]) -> None:
        if isinstance(event, ev.RequestSubmitted):
            self.submitted_at[event.request] = machine.now
        if isinstance(event, ev.RequestEnded):
            self.ended_at.setdefault(event.request, machine.now)
        for effect in effects:
            match effect:
                case fx.Deliver(_, written, speaker):
                    self._delivers(written, speaker)
                case fx.Complete(request) | fx.Reject(request):
                    self.ended_at.setdefault(request, machine.now)
                case fx.Send(_, msg.StopSending() as message):
                    self._parts(machine, event, message)
                case fx.Count("pdd_cuts_total"):
                    self._cuts(machine)

    def _delivers(self, written: msg.Written, speaker: Role) -> None:
        """What the client gets was written in the epoch that it comes from."""
        key = Key(written.request, written.epoch)
        known = self.written.get(key, {})
        for index, token in enumerate(written.ids, written.start):
            if index not in known or known[index].token != token:
                raise Violation("its own epoch", f"index {index} of {key}, said to be by {speaker}, was not written so")

    def _parts(self, machine: Router, event: ev.Event, message: msg.StopSending) -> None:
        """MD leaves a running epoch because it is lost, because it refused, or because RLD promised to do without."""
        refused = isinstance(event, ev.Heard) and isinstance(event.message, msg.Refused)
        lost = machine.fleet.lost(message.receiver, machine.now)
        promised = Key(message.request, message.epoch) in self.promised
        if message.receiver.role is Role.MAIN and not (refused or lost or promised):
            raise Violation(
                "who parts", f"{message.receiver} is sent away from {message.request} without RLD's promise"
            )

    @staticmethod
    def _cuts(machine: Router) -> None:
        guard = machine.cuts.singular
        if guard.share > guard.given.cap or guard.gap > guard.given.gap:
            raise Violation("the guard", f"a cut at a share of {guard.share:.3f} and a gap of {guard.gap:.3f}")
