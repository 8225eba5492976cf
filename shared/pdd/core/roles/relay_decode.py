"""RLD: takes the prompt's KV over the near path and decodes from token 1 while the other copy crosses to MD."""

from enum import Enum, auto
from typing import ClassVar

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
from ..ids import Peer
from ..messages import Assignment, Cut, MainReady, PrepareRelay
from .held import Computed
from .receiver import Filling, Receiver
from .relaying import Pen, Relay


class Phase(Enum):
    """Before it speaks; then relaying.Pen."""

    OPENING = auto()
    FILLING = auto()


class RelayDecode(Receiver[Filling], Relay[Filling]):
    OPENING = Phase.OPENING
    COMMAND = PrepareRelay

    def make(self, command: Assignment, router: Peer) -> Filling:
        held = Filling(command, router, Phase.OPENING, self.now, self.now)
        held.relay.no_main = command.cast.main is None
        return held

    def alone(self, held: Filling) -> None:
        held.own_start = held.base
        held.whole = True
        self.begin_relay(held)

    def fill(self, held: Filling) -> None:
        self.enter(held, Phase.FILLING)

    def filled(self, held: Filling) -> None:
        held.own_start = held.base + 1
        self.begin_relay(held)

    def work(self, held: Filling) -> None:
        if held.phase is Phase.FILLING:
            self.work_filling(held)
        else:
            self.work_relay(held)

    ROWS: ClassVar = {
        **Relay.RELAY_ROWS,
        (Phase.OPENING, SequenceOpened): "opened",
        (Phase.OPENING, SequenceRefused): "refused",
        (Phase.FILLING, KvExpected): "expected",
        (Phase.FILLING, KvRefused): "no_staging",
        (Phase.FILLING, KvLanded): "landed",
        (Phase.FILLING, KvDamaged): "damaged",
        (Phase.FILLING, KvClosed): "closed",
        (Phase.FILLING, KvImported): "imported",
        (Phase.FILLING, KvImportFailed): "import_failed",
        (Phase.FILLING, Computed): "late",
        **{(phase, MainReady): "main_ready" for phase in Phase},
        **{(phase, Cut): "cut" for phase in Phase},
        # A yield before the prompt was whole leaves the link and the engine with results to report.
        **{
            (phase, event): "late"
            for phase in Pen
            for event in (KvExpected, KvRefused, KvLanded, KvDamaged, KvClosed, KvImported, KvImportFailed)
        },
        (Pen.YIELDED, SequenceOpened): "late",
        (Pen.YIELDED, SequenceRefused): "late",
    }
