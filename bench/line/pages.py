"""An engine's memory with nothing in it but bytes: what a sender exports is a stretch of one cold buffer, without a copy."""

import os

from pdd.core.ids import Key
from pdd.ports import KvChunk, KvShape

SHAPE = KvShape(layers=32, kv_heads=4, head_dim=64, dtype="bfloat16")  # 32 KiB a token
BUFFER_BYTES = 512 << 20  # beyond every cache, so that each export is cold


def tokens_of(size: int, shape: KvShape = SHAPE) -> int:
    return -(-size // shape.bytes_per_token)


class BufferPages:
    """Satisfies ports.KvSource. Every sequence is open; its bytes are random, so that nothing packs them."""

    def __init__(self, shape: KvShape = SHAPE, size: int = BUFFER_BYTES) -> None:
        self.kv_shape = shape
        block = os.urandom(1 << 20)
        self._buffer = memoryview(bytearray(block * (size // len(block))))

    def export_kv(self, key: Key, start: int, stop: int) -> KvChunk:
        size = (stop - start) * self.kv_shape.bytes_per_token
        at = (start * self.kv_shape.bytes_per_token) % (len(self._buffer) - size + 1)
        return KvChunk(start, stop, self.kv_shape, self._buffer[at : at + size])
