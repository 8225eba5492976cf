"""What a worker holds for routers: taken by a command, kept by renewals, given back by a release, a refusal or a lease's end.

Whatever was given back leaves a tombstone: no late command begins it again. After a refusal the same command may, but not for a
warm-up that gave its place up.
"""

from typing import Generic, TypeVar

from ..effects import CloseSequence, Count, Effect, OpenSequence, Send
from ..ids import Epoch, Peer, RequestId
from ..messages import Accepted, Assignment, EngineLoad, Message, Refused, Release, Released, WorkerCard
from ..timeouts import TimeOuts
from .held import Held

H = TypeVar("H", bound=Held)


class Keeper(Generic[H]):
    """`held` is the truth about what this worker owes anybody."""

    def __init__(self, me: Peer, card: WorkerCard, timeouts: TimeOuts) -> None:
        self.me, self.card, self.timeouts = me, card, timeouts
        self.held: dict[RequestId, H] = {}
        self.tombstones: dict[RequestId, tuple[Epoch, float]] = {}
        self.load = EngineLoad()
        self.draining = False
        self.now = 0.0
        self._beats = 0
        self._effects: list[Effect] = []

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(self, held: Held, to: Peer, message: Message) -> None:
        self.emit(Send(to, message, held.command.traceparent))

    def drop(self, reason: str) -> None:
        self.emit(Count("pdd_messages_dropped_total", (("reason", reason),)))

    # -- what a role adds ---------------------------------------------------------------------------------------------

    def make(self, command: Assignment, router: Peer) -> H:
        raise NotImplementedError

    def let_go(self, held: H) -> None:
        """Free what the role took beyond the engine sequence. Comes before CloseSequence."""

    # -- taken --------------------------------------------------------------------------------------------------------

    def _assign(self, router: Peer, command: Assignment) -> None:
        held = self.held.get(command.request)
        if held and held.epoch == command.epoch:
            if held.accepted:
                self._accept(held)
            return
        ended = self.tombstones.get(command.request)
        if (held and command.epoch < held.epoch) or (ended and command.epoch <= ended[0]):
            return self.drop("late_command")
        if self.draining or (command.warm_up and not self._idles):
            reason = "draining" if self.draining else "no room for a warm-up"
            return self.emit(Send(router, Refused(command.request, command.epoch, reason)))
        if held:
            self.forget(held)  # its whole pages stay in the cache, where the new epoch finds them
        if len(self.held) >= self.card.max_sequences:
            self.give_up_warm_up()
        held = self.held[command.request] = self.make(command, router)
        held.out = list(command.ids[command.prompt_len :])
        held.phase_at = self.now
        self.emit(
            OpenSequence(
                held.key,
                command.ids,
                command.prompt_len,
                command.sampling,
                command.cache_salt,
                compute_last=command.cast.prefill in (None, self.me),
            )
        )

    def _accept(self, held: H) -> None:
        held.accepted = True
        self.send(held, held.router, Accepted(held.request, held.epoch, held.have, self._beats))

    @property
    def _idles(self) -> bool:
        """Half of everything is free."""
        return 2 * len(self.held) < self.card.max_sequences and 2 * self.load.free_pages >= self.load.total_pages

    # -- kept ---------------------------------------------------------------------------------------------------------

    def _renew(self, router: Peer, epochs: dict[RequestId, Epoch]) -> None:
        for request, epoch in epochs.items():
            held = self.held.get(request)
            if held is None or held.router.name != router.name:
                continue
            if epoch == held.epoch:
                held.renewed_at = self.now
            elif epoch == 0 or epoch > held.epoch:
                self.forget(held)
                self._bury(request, held.epoch)

    # -- given back ---------------------------------------------------------------------------------------------------

    def _release(self, sender: Peer, message: Release) -> None:
        held = self.held.get(message.request)
        if held and held.epoch <= message.epoch:
            self.forget(held)
        self._bury(message.request, message.epoch)
        self.emit(Send(sender, Released(message.request, message.epoch)))

    def _lease_ended(self, held: H) -> None:
        self.emit(Count("pdd_leases_expired_total"))
        self.forget(held)
        self._bury(held.request, held.epoch)

    def refuse(self, held: H, reason: str) -> None:
        """A repeated command gets the same answer, or a better one; one of an older epoch starts nothing."""
        self.send(held, held.router, Refused(held.request, held.epoch, reason))
        self.forget(held)
        self._bury(held.request, Epoch(held.epoch - 1))

    def give_up_warm_up(self) -> None:
        """The youngest: somebody who is waited for needs its place. A repeated command does not begin it again."""
        held = next((held for held in reversed(self.held.values()) if held.command.warm_up), None)
        if held:
            self.refuse(held, "its place is needed")
            self._bury(held.request, held.epoch)

    def forget(self, held: H) -> None:
        self.let_go(held)
        self.emit(CloseSequence(held.key))
        del self.held[held.request]

    def _bury(self, request: RequestId, epoch: Epoch) -> None:
        old = self.tombstones.get(request, (Epoch(0), 0.0))[0]
        self.tombstones[request] = (max(old, epoch), self.now + self.timeouts.tombstone_s)
