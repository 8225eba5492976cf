"""Lossless packing of KV: the bytes of each rank in a plane of their own, since exponents repeat and mantissas do not.

A packed chunk is a table of its planes' lengths, lowest byte first, and the planes: packed by the library, or as they are where that
saves nothing. Unpacking writes into memory of the right size and nowhere else, whatever the chunk says.
"""

import importlib.util
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..core.errors import FrameError

SAMPLE_BYTES = 32 << 10
WORTH_IT = 0.97  # of a plane's sample; what packs worse stays as it is
ZSTD_LEVEL = 1
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Codec(NamedTuple):
    """`pack` gives parts to send one after another, or none: send it as it is. `unpack` fills `target` exactly or raises FrameError.

    `done`, where there is one, is told of those parts when they are answered, or will never be.
    """

    pack: Callable[[memoryview, str], list[memoryview]]
    unpack: Callable[[memoryview, memoryview, str], None]
    done: Callable[[list[memoryview]], None] | None = None


def codecs() -> Mapping[str, Codec]:
    """Those whose libraries are installed, by the name that goes over the wire."""
    found: dict[str, Codec] = {}
    if importlib.util.find_spec("numpy") is None:
        return found
    if importlib.util.find_spec("zstandard"):
        found["zstd"] = _planes(*_zstd())
    if importlib.util.find_spec("lz4"):
        found["lz4"] = _planes(*_lz4())
    return found


Squeeze = Callable[[Any], bytes]
Swell = Callable[[memoryview, Any], None]  # into an array of exactly the right size


def _zstd() -> tuple[Squeeze, Swell]:
    import zstandard

    def swell(packed: memoryview, plane: Any) -> None:
        at = 0
        with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
            while at < plane.nbytes:
                got = reader.readinto(memoryview(plane)[at:])
                if not got:
                    raise FrameError("a plane is too short")
                at += got
            if reader.readinto(bytearray(1)):
                raise FrameError("a plane is too long")

    def squeeze(plane: Any) -> bytes:  # one context for each call: they are not for several threads
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=False).compress(plane)

    return squeeze, _translated(swell, zstandard.ZstdError)


def _lz4() -> tuple[Squeeze, Swell]:
    import lz4.block

    def swell(packed: memoryview, plane: Any) -> None:
        raw = lz4.block.decompress(packed, uncompressed_size=plane.nbytes)
        if len(raw) != plane.nbytes:
            raise FrameError("a plane is too short")
        memoryview(plane)[:] = raw

    def squeeze(plane: Any) -> bytes:
        return bytes(lz4.block.compress(plane, store_size=False))

    return squeeze, _translated(swell, lz4.block.LZ4BlockError)


def _translated(swell: Swell, foreign: type[Exception]) -> Swell:
    def safe(packed: memoryview, plane: Any) -> None:
        try:
            swell(packed, plane)
        except foreign as error:
            raise FrameError(f"a plane cannot be unpacked: {error}") from error

    return safe


def _planes(squeeze: Squeeze, swell: Swell) -> Codec:
    import numpy

    def pack(payload: memoryview, dtype: str) -> list[memoryview]:
        ranks = numpy.frombuffer(payload, numpy.uint8).reshape(-1, ITEM_BYTES[dtype])
        parts = []
        for rank in range(ranks.shape[1]):
            plane = numpy.ascontiguousarray(ranks[:, rank])
            sample = plane[:SAMPLE_BYTES]
            packed = squeeze(plane) if len(squeeze(sample)) < WORTH_IT * sample.nbytes else b""
            parts.append(memoryview(packed) if 0 < len(packed) < plane.nbytes else memoryview(plane.data))
        return [memoryview(struct.pack(f"<{len(parts)}I", *map(len, parts))), *parts]

    def unpack(packed: memoryview, target: memoryview, dtype: str) -> None:
        count = ITEM_BYTES[dtype]
        size, table = target.nbytes // count, struct.Struct(f"<{count}I")
        if packed.nbytes < table.size or target.nbytes % count:
            raise FrameError("a packed chunk is cut short")
        lengths, at = table.unpack_from(packed), table.size
        if sum(lengths) != packed.nbytes - table.size:
            raise FrameError("a packed chunk's planes are not as long as it is")
        ranks = numpy.frombuffer(target, numpy.uint8).reshape(-1, count)
        for rank, length in enumerate(lengths):
            part = packed[at : at + length]
            at += length
            if length == size:
                ranks[:, rank] = numpy.frombuffer(part, numpy.uint8)
            else:
                plane = numpy.empty(size, numpy.uint8)
                swell(part, plane)
                ranks[:, rank] = plane

    return Codec(pack, unpack)
