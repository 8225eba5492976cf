"""P: computes what is missing of the prompt's KV, sends each chunk as it is computed to whoever holds a ticket, speaks token 0.

The engine's pages are held until every receiver of the cast has answered the closing frame; the ids until the router's Release.
Where the cast names P as its own relay, it goes on from token 1 by `relaying`, without a near transfer.
"""

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar

from ..codec import encode_written
from ..effects import (
    CancelTransfer,
    CloseSequence,
    CloseTransfer,
    Count,
    Observe,
    OfferKv,
    OpenTransfer,
    Speak,
)
from ..events import KvAcked, KvCloseAcked, SequenceOpened, SequenceRefused, TransferFailed
from ..ids import Peer, TransferId
from ..messages import Assignment, Cut, KvDelivered, MainReady, StartPrefill, StopSending, Ticket
from .held import Computed, Wrote
from .receiver import add_range, missing_ranges
from .relaying import Pen, Relay, RelayHeld


class Phase(Enum):
    OPENING = auto()
    COMPUTING = auto()
    SPOKEN = auto()  # token 0 is out; transfers may still run
    SENT = auto()  # every receiver has everything; the pages are given back


@dataclass(slots=True)
class Outgoing:
    """One receiver's transfer. `missing` are its token ranges not offered yet; `broken` waits for the next ticket."""

    ticket: Ticket
    receiver: Peer
    missing: list[tuple[int, int]]
    opened_at: float
    tokens: int = 0
    acked: list[tuple[int, int]] = field(default_factory=list)
    broken: bool = False
    closing: bool = False
    done: bool = False

    @property
    def whole(self) -> bool:
        """Has the receiver said so of every token?"""
        return not any(missing_ranges(start, stop, self.acked) for start, stop in self.ticket.missing)


@dataclass(slots=True)
class Prefilling(RelayHeld):
    outgoing: dict[Peer, Outgoing] = field(default_factory=dict)
    gone: dict[Peer, None] = field(default_factory=dict)  # receivers that left the cast
    chunk_at: float = 0.0


class Prefill(Relay[Prefilling]):
    OPENING = Phase.OPENING
    COMMAND = StartPrefill

    def make(self, command: Assignment, router: Peer) -> Prefilling:
        held = Prefilling(command, router, Phase.OPENING, self.now, self.now)
        held.relay.no_main = command.cast.main is None
        return held

    def hosts(self, held: Prefilling) -> bool:
        """Is the relay here, on the pages that prefill wrote?"""
        return held.command.cast.relay == self.me

    def receivers(self, held: Prefilling) -> list[Peer]:
        cast = held.command.cast
        return [peer for peer in (cast.relay, cast.main) if peer and peer != self.me and peer not in held.gone]

    def let_go(self, held: Prefilling) -> None:
        for out in held.outgoing.values():
            self.emit(CancelTransfer(out.ticket.transfer))
            self.by_transfer.pop(out.ticket.transfer, None)

    # -- prefill ------------------------------------------------------------------------------------------------------

    def opened(self, held: Prefilling, event: SequenceOpened) -> None:
        held.have = held.computed = event.have
        held.chunk_at = self.now
        self.enter(held, Phase.COMPUTING)
        self._accept(held)
        self.emit(Speak(held.key, stop=held.base + 1))
        self.emit(Count("pdd_prefix_hit_tokens_total", (("role", self.me.role),), event.have))
        for out in held.outgoing.values():
            self._offer(held, out)

    def refused(self, held: Prefilling, event: SequenceRefused) -> None:
        self.refuse(held, event.reason)

    def computed(self, held: Prefilling, event: Computed) -> None:
        began = max(held.chunk_at, event.started_at)
        if held.progress == 1:
            self.span(held, "queue", held.chunk_at, stop=began)
        self.span(held, "prefill.chunk", began, upto=event.upto)
        held.chunk_at = self.now
        for out in held.outgoing.values():
            self._offer(held, out)

    def wrote(self, held: Prefilling, event: Wrote) -> None:
        held.own_start = held.base
        held.computed = len(held.command.ids)
        held.whole = True
        held.learn(event.written)
        self.speak(held.router, event.written)
        self.emit(Count("pdd_tokens_written_total", (("role", self.me.role),)))
        self.span(held, "prefill", held.opened_at, prompt_tokens=len(held.command.ids), hit=held.have)
        if held.finish or not self.hosts(held):
            self.enter(held, Phase.SPOKEN)
        else:
            self.begin_relay(held)
        for out in held.outgoing.values():
            self._offer(held, out)

    def work(self, held: Prefilling) -> None:
        self.work_relay(held)

    # -- transfers ----------------------------------------------------------------------------------------------------

    def ticket(self, held: Prefilling, sender: Peer, ticket: Ticket) -> None:
        """The truth about what a receiver lacks. A repeat of what is under way is ignored; a break or a higher serial starts anew."""
        if sender not in self.receivers(held):
            return self.drop("cast")
        out = held.outgoing.get(sender)
        if out and (ticket.serial < out.ticket.serial or (ticket.serial == out.ticket.serial and not out.broken)):
            return
        if out:
            self.emit(CancelTransfer(out.ticket.transfer))
        out = Outgoing(ticket, sender, list(ticket.missing), self.now, sum(b - a for a, b in ticket.missing))
        held.outgoing[sender] = out
        self.by_transfer[ticket.transfer] = held
        self.emit(
            OpenTransfer(
                ticket.transfer,
                held.key,
                sender,
                ticket.address,
                ticket.secret,
                held.command.traceparent,
                near=sender.site == self.me.site,
                tokens=out.tokens,
                warm_up=held.command.warm_up,
            )
        )
        if held.phase is not Phase.OPENING:
            self._offer(held, out)

    def _offer(self, held: Prefilling, out: Outgoing) -> None:
        """Offer what is computed; after token 0, the closing frame that carries it. An ended request hands nothing over."""
        if out.broken or out.closing:
            return
        waiting = []
        for start, stop in out.missing:
            ready = min(stop, held.computed)
            if start < ready:
                self.emit(OfferKv(out.ticket.transfer, start, ready))
            if max(start, ready) < stop:
                waiting.append((max(start, ready), stop))
        out.missing = waiting
        ended_by_us = held.finish and len(held.out) == held.base + 1
        if held.whole and not ended_by_us and not waiting:
            out.closing = True
            token_0 = held.outputs(held.base, held.base + 1)
            self.emit(CloseTransfer(out.ticket.transfer, encode_written(token_0)))

    def _outgoing(self, held: Prefilling, transfer: TransferId) -> Outgoing | None:
        return next((out for out in held.outgoing.values() if out.ticket.transfer == transfer), None)

    def acked(self, held: Prefilling, event: KvAcked) -> None:
        held.progress += 1
        if out := self._outgoing(held, event.transfer):
            out.acked = add_range(out.acked, event.start, event.stop)

    def close_acked(self, held: Prefilling, event: KvCloseAcked) -> None:
        """The end arrived. A chunk that did not, or was damaged, is asked for by the receiver's next ticket."""
        out = self._outgoing(held, event.transfer)
        if out is None or out.done:
            return
        if not out.whole:
            return self.failed(held, TransferFailed(event.transfer, "incomplete"))
        out.done = True
        way = "near" if out.receiver.site == self.me.site else "wan"
        self.emit(Count("pdd_kv_bytes_total", (("way", way),), event.payload_bytes))
        self.emit(Observe("pdd_kv_transfer_seconds", event.seconds, (("way", way),)))
        self.span(held, "kv.transfer", out.opened_at, way=way, bytes=event.payload_bytes)
        delivered = (out.receiver, out.tokens, event.payload_bytes, event.seconds)
        self.send(held, held.router, KvDelivered(held.request, held.epoch, *delivered))
        self._close_when_sent(held)

    def _close_when_sent(self, held: Prefilling) -> None:
        sent = all(peer in held.outgoing and held.outgoing[peer].done for peer in self.receivers(held))
        if held.phase is Phase.SPOKEN and sent:
            self.enter(held, Phase.SENT)
            self.emit(CloseSequence(held.key))

    def failed(self, held: Prefilling, event: TransferFailed) -> None:
        out = self._outgoing(held, event.transfer)
        if out and not out.done:
            out.broken = True
            self.emit(Count("pdd_transfers_failed_total", (("reason", event.reason),)))

    def stop_sending(self, held: Prefilling, sender: Peer, message: StopSending) -> None:
        """The receiver has left the cast: free the line."""
        held.gone[message.receiver] = None
        out = held.outgoing.pop(message.receiver, None)
        if out:
            self.emit(CancelTransfer(out.ticket.transfer))
            self.by_transfer.pop(out.ticket.transfer, None)
        self._close_when_sent(held)

    ROWS: ClassVar = {
        **Relay.RELAY_ROWS,
        (Phase.OPENING, SequenceOpened): "opened",
        (Phase.OPENING, SequenceRefused): "refused",
        (Phase.OPENING, Ticket): "ticket",  # receivers may be quicker than our own engine
        (Phase.OPENING, StopSending): "stop_sending",
        (Phase.OPENING, TransferFailed): "failed",  # connecting starts with the ticket
        (Phase.COMPUTING, Computed): "computed",
        (Phase.COMPUTING, Wrote): "wrote",
        **{
            (phase, event): name
            for phase in (Phase.COMPUTING, Phase.SPOKEN, *Pen)
            for event, name in (
                (Ticket, "ticket"),
                (StopSending, "stop_sending"),
                (KvAcked, "acked"),
                (TransferFailed, "failed"),
            )
        },
        **{(phase, KvCloseAcked): "close_acked" for phase in (Phase.SPOKEN, *Pen)},  # token 0 is in what it answers
        # A hosted relay may be asked for a cut before token 0 is out; MD cannot be whole then, and would say it again.
        **{(phase, MainReady): "late" for phase in (Phase.OPENING, Phase.COMPUTING)},
        **{(phase, Cut): "cut" for phase in (Phase.OPENING, Phase.COMPUTING)},
        (Phase.SPOKEN, Computed): "late",  # a step that held the sequence once more
        (Phase.SENT, Computed): "late",
        (Phase.SENT, Ticket): "late",  # sent before our last frame reached its sender
        (Phase.SENT, StopSending): "late",
        (Phase.SENT, KvAcked): "late",
        (Phase.SENT, KvCloseAcked): "late",
        (Phase.SENT, TransferFailed): "late",
    }
