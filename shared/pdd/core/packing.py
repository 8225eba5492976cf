"""Whether KV is packed before it crosses, and how: from what the line carries and what each codec was seen to do. Never guessed.

A codec is worth its time where the line takes longer for what it saves than the codec for the work. Each codec is tried on a
chunk now and then, since both its ratio and its speed depend on the model and on what else the processor does.
"""

from collections.abc import Sequence
from dataclasses import dataclass

TRY_AGAIN_S = 60.0
GAIN = 1.1  # less is not worth the processor
FORGOTTEN_BYTES = 1 << 30
KEPT = 0.7  # of what was known, when a chunk tells more


@dataclass(slots=True)
class Seen:
    """What a codec does here: raw bytes for each packed one, and raw bytes a second that one thread packs."""

    ratio: float
    bytes_per_s: float
    at: float


class Packing:
    """`codecs`: those that both sides know, by name. `threads`: how many chunks are packed at a time.

    `always`: this one without asking, where both sides know it.
    """

    def __init__(self, threads: int, always: str = "") -> None:
        self.codecs: Sequence[str] = ()
        self._always = always
        self.seen: dict[str, Seen] = {}
        self.raw_bytes = self.crossed_bytes = 0  # of all chunks, packed or not; halved now and then
        self._threads = threads

    def choose(self, line_bytes_per_s: float, now: float) -> str:
        """A codec's name for the next chunk, or "". `line_bytes_per_s`: what it carries, packed or not; 0: not known."""
        if self._always:
            return self._always if self._always in self.codecs else ""
        for codec in self.codecs:
            seen = self.seen.get(codec)
            if seen is None or now - seen.at > TRY_AGAIN_S:
                return codec
        best, through = "", line_bytes_per_s * GAIN
        for codec in self.codecs:
            seen = self.seen[codec]
            packed = min(seen.bytes_per_s * self._threads, line_bytes_per_s * seen.ratio)
            if packed > through:
                best, through = codec, packed
        return best

    def crossed(self, raw: int, packed: int) -> None:
        if self.raw_bytes > FORGOTTEN_BYTES:
            self.raw_bytes, self.crossed_bytes = self.raw_bytes // 2, self.crossed_bytes // 2
        self.raw_bytes += raw
        self.crossed_bytes += packed

    def crossing(self, codec: str, raw: int) -> int:
        """About how many bytes cross for so many."""
        seen = self.seen.get(codec)
        return round(raw / seen.ratio) if seen else raw

    def learned(self, codec: str, raw: int, packed: int, seconds: float, now: float) -> None:
        ratio, rate = raw / max(1, packed), raw / max(seconds, 1e-9)
        if known := self.seen.get(codec):
            ratio = KEPT * known.ratio + (1 - KEPT) * ratio
            rate = KEPT * known.bytes_per_s + (1 - KEPT) * rate
        self.seen[codec] = Seen(ratio, rate, now)
