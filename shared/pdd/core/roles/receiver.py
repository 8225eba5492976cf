"""The filling half of RLD and MD: a ticket to P, KV into staging, one import into pages, token 0 from the closing frame.

The ticket is the truth: it names what is missing and is repeated until nothing is. A damaged frame or a stalled transfer raises
its serial, which tells P that what was under way is void.
"""

from dataclasses import dataclass, field
from typing import TypeVar

from ..codec import decode_written
from ..effects import AppendIds, Count, DropKv, ExpectKv, ImportKv
from ..errors import FrameError
from ..events import (
    KvClosed,
    KvDamaged,
    KvExpected,
    KvImported,
    KvImportFailed,
    KvLanded,
    KvRefused,
    SequenceOpened,
    SequenceRefused,
)
from ..ids import Role, TransferId
from ..messages import Ticket, Written
from .held import Computed
from .relaying import RelayHeld
from .worker import Worker


def context_limit(role: Role, engine_limit: int, staging_bytes: int, bytes_per_token: int) -> int:
    """Tokens of the longest request a worker can take: a receiver's staging memory must hold one whole transfer."""
    return engine_limit if role is Role.PREFILL else min(engine_limit, staging_bytes // bytes_per_token)


def missing_ranges(start: int, stop: int, landed: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The gaps of [start, stop) that `landed` (ascending, disjoint) leaves."""
    gaps, at = [], start
    for begin, end in landed:
        if at < begin:
            gaps.append((at, begin))
        at = max(at, end)
    if at < stop:
        gaps.append((at, stop))
    return tuple(gaps)


def add_range(landed: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """`landed` with [start, stop) merged in."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted([*landed, (start, stop)]):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


@dataclass(slots=True)
class Filling(RelayHeld):
    transfer: TransferId = TransferId("")
    address: str = ""
    serial: int = 0
    landed: list[tuple[int, int]] = field(default_factory=list)
    landed_at: float = 0.0
    token_0: Written | None = None
    importing: bool = False

    @property
    def missing(self) -> tuple[tuple[int, int], ...]:
        return missing_ranges(self.have, len(self.command.ids), self.landed)


F = TypeVar("F", bound=Filling)


class Receiver(Worker[F]):
    """A role opens with `opened` and is told by `filled` when the prompt's KV and token 0 are here."""

    def opened(self, held: F, event: SequenceOpened) -> None:
        held.have = held.computed = event.have
        held.landed_at = self.now
        self._accept(held)
        self.emit(Count("pdd_prefix_hit_tokens_total", (("role", self.me.role),), event.have))
        if held.command.cast.prefill is None:
            return self.alone(held)
        held.transfer = TransferId(f"{held.request}.{held.epoch}.{self.me.name}.{self.me.incarnation}")
        self.by_transfer[held.transfer] = held
        self.fill(held)
        self._expect(held)

    def refused(self, held: F, event: SequenceRefused) -> None:
        self.refuse(held, event.reason)

    # -- what a role adds ---------------------------------------------------------------------------------------------

    def alone(self, held: F) -> None:
        """No P in the cast: compute and speak from `base` on."""
        raise NotImplementedError

    def fill(self, held: F) -> None:
        """Enter the filling phase."""
        raise NotImplementedError

    def filled(self, held: F) -> None:
        """Prompt and token 0 are here."""
        raise NotImplementedError

    # -- filling ------------------------------------------------------------------------------------------------------

    def _expect(self, held: F) -> None:
        held.sent_at["expect"] = self.now
        secret = self.secret_for(held.transfer)
        self.emit(ExpectKv(held.transfer, held.epoch, secret, held.have, len(held.command.ids)))

    def expected(self, held: F, event: KvExpected) -> None:
        held.address = event.address
        self._send_ticket(held)

    def no_staging(self, held: F, event: KvRefused) -> None:
        """Asked again by `work`; the router's no-progress time-out bounds it."""
        self.emit(Count("pdd_staging_refused_total"))
        if not held.command.warm_up:
            self.give_up_warm_up()

    def landed(self, held: F, event: KvLanded) -> None:
        held.landed = add_range(held.landed, event.start, event.stop)
        held.landed_at = self.now
        held.progress += 1
        self._import_when_whole(held)

    def damaged(self, held: F, event: KvDamaged) -> None:
        self.emit(Count("pdd_kv_damaged_total", (("reason", event.reason),)))
        self._start_over(held)

    def closed(self, held: F, event: KvClosed) -> None:
        try:
            held.token_0 = decode_written(event.closing)
        except FrameError:
            return self.damaged(held, KvDamaged(event.transfer, "closing"))
        held.landed_at = self.now
        held.progress += 1
        self._import_when_whole(held)

    def _import_when_whole(self, held: F) -> None:
        if held.token_0 is None or held.missing or held.importing:
            return
        held.importing = True
        if held.have < len(held.command.ids):
            self.emit(ImportKv(held.key, held.transfer))
        else:
            self._complete(held)

    def imported(self, held: F, event: KvImported) -> None:
        held.computed = len(held.command.ids)
        self._complete(held)

    def import_failed(self, held: F, event: KvImportFailed) -> None:
        self.refuse(held, event.reason)

    def _complete(self, held: F) -> None:
        assert held.token_0 is not None
        self.emit(DropKv(held.transfer))
        held.whole = True
        held.progress += 1
        held.learn(held.token_0)
        self.append(held, held.base)
        self.filled(held)

    def append(self, held: F, start: int) -> None:
        """Tell the engine of outputs from `start` on, so that it extends over them."""
        if start < len(held.out):
            self.emit(AppendIds(held.key, start, tuple(held.out[start:])))

    def _send_ticket(self, held: F) -> None:
        held.sent_at["ticket"] = self.now
        prefill = held.command.cast.prefill
        assert prefill is not None
        secret = self.secret_for(held.transfer)
        ticket = Ticket(
            held.request, held.epoch, held.transfer, held.serial, held.missing, held.address, secret
        )  # fmt: skip
        self.send(held, prefill, ticket)

    def _start_over(self, held: F) -> None:
        held.serial += 1
        held.landed_at = self.now
        self._send_ticket(held)

    def work_filling(self, held: F) -> None:
        """The repeats of the filling phase, from `work`."""
        if held.importing:
            return
        if not held.address:
            if self.every(held, "expect", self.timeouts.retry_s):
                self._expect(held)
        elif self.now - held.landed_at > self.timeouts.kv_stall_s * 2**held.serial:
            self.emit(Count("pdd_kv_damaged_total", (("reason", "stalled"),)))
            self._start_over(held)
        elif self.every(held, "ticket", self.timeouts.ticket_s):
            self._send_ticket(held)

    def let_go(self, held: F) -> None:
        if held.transfer:
            self.emit(DropKv(held.transfer))
            self.by_transfer.pop(held.transfer, None)

    def late_computed(self, held: F, event: Computed) -> None:
        """The engine extends over ids it was given; nothing to decide."""
