"""One transfer on its way out, and the chunk of it that is due."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from .effects import OpenTransfer
from .ids import Key, TransferId
from .wire import ChunkFrame, OpenFrame, WireShape, checksum


@dataclass(frozen=True, slots=True)
class ChunkDue:
    """Export tokens [start, stop) of `key` now, and send them."""

    transfer: TransferId
    attempt: int
    key: Key
    start: int
    stop: int
    codec: str = ""  # pack it so

    def frame(self, shape: WireShape, parts: Sequence[memoryview]) -> ChunkFrame:
        """What goes before the payload's parts: all layers of these tokens, as they cross."""
        return ChunkFrame(
            self.transfer,
            self.attempt,
            self.key.epoch,
            self.start,
            self.stop,
            0,
            shape.layers,
            shape.dtype,
            checksum(*parts),
            sum(part.nbytes for part in parts),
            self.codec,
        )


@dataclass(slots=True)
class Leaving:
    """`ranges` are offered and not sent; `since`: when its first attempt was asked for."""

    effect: OpenTransfer
    attempt: int
    small: bool
    since: float
    ranges: deque[tuple[int, int]] = field(default_factory=deque)
    opened: bool = False
    closing: bytes | None = None
    close_sent: bool = False
    close_answered: bool = False
    sent_tokens: int = 0
    crossed_bytes: int = 0  # payload as it left, packed or not
    began_at: float | None = None
    served_at: float = 0.0  # the last chunk left

    @property
    def waiting_tokens(self) -> int:
        """Offered and not sent."""
        return sum(stop - start for start, stop in self.ranges)

    @property
    def remaining_tokens(self) -> int:
        return max(self.effect.tokens - self.sent_tokens, self.waiting_tokens)

    @property
    def close_due(self) -> bool:
        return self.closing is not None and not self.ranges and not self.close_sent

    def open_frame(self, shape: WireShape) -> OpenFrame:
        effect = self.effect
        return OpenFrame(
            effect.transfer, self.attempt, effect.key.epoch, effect.receiver, effect.secret, shape, effect.traceparent
        )

    def cut(self, size: int) -> tuple[int, int]:
        """Take the next chunk, of at most `size` tokens, at multiples of it: what is sent again has the same bounds."""
        start, stop = self.ranges.popleft()
        cut = min(stop, (start // size + 1) * size)
        if cut < stop:
            self.ranges.appendleft((cut, stop))
        self.sent_tokens += cut - start
        return start, cut

    def take_back(self, start: int, stop: int) -> None:
        """That chunk has to be sent again, before the rest."""
        self.ranges.appendleft((start, stop))
        self.sent_tokens -= stop - start
