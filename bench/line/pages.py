"""An engine's memory with nothing in it but bytes: what a sender exports is a stretch of one cold buffer, without a copy."""

import os
from dataclasses import replace
from pathlib import Path

from pdd.core.ids import Key
from pdd.ports import KvChunk, KvShape

SHAPE = KvShape(layers=32, kv_heads=4, head_dim=64, dtype="bfloat16")  # 32 KiB a token
BUFFER_BYTES = 512 << 20  # beyond every cache, so that each export is cold


class BufferPages:
    """Satisfies ports.KvSource. Every sequence is open; its bytes are random, so that nothing packs them, or the content given."""

    def __init__(self, shape: KvShape = SHAPE, size: int = BUFFER_BYTES, content: bytes = b"") -> None:
        self.kv_shape = shape
        block = content or os.urandom(1 << 20)
        self._buffer = memoryview(bytearray(block * max(1, size // len(block))))

    def export_kv(self, key: Key, start: int, stop: int) -> KvChunk:
        size = (stop - start) * self.kv_shape.bytes_per_token
        at = (start * self.kv_shape.bytes_per_token) % (len(self._buffer) - size + 1)
        return KvChunk(start, stop, self.kv_shape, self._buffer[at : at + size])


def shape_of(kv: tuple[str, str] | None, layers: int) -> KvShape:
    """Fewer layers: smaller tokens, so that small transfers have the size they should."""
    return replace(SHAPE, dtype=kv[1] if kv else SHAPE.dtype, layers=layers or SHAPE.layers)


def pages(kv: tuple[str, str] | None, layers: int, *, small: bool) -> BufferPages:
    """`kv`: a file of real KV and its dtype. `small`: for a side that exports nothing."""
    shape = shape_of(kv, layers)
    if small:
        return BufferPages(shape, 1 << 20)
    return BufferPages(shape, content=Path(kv[0]).read_bytes() if kv else b"")
