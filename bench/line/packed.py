"""Packing on real KV: the demo model's, in each dtype: ratio and speed by codec, and what it brings on a slow line."""

import tempfile
import time
from pathlib import Path
from typing import Any

from infra.wan.namespaces import Shape
from pdd.adapters.kv_codecs import codecs

from .places import place
from .section import MB, Section, Told, middle, spread

WAN = Shape(100, 25)
CHUNK_TOKENS = 64
DTYPES = ("bfloat16", "float16", "float32")


def ratios(told: Told, tls: list[str]) -> Section:
    section = Section(
        "Packing real KV", "one thread, no line",
        f"SmolLM2-135M's KV of running text, in chunks of {CHUNK_TOKENS} tokens; raw bytes count.",
        ("dtype", "codec", "raw / packed", "packs, MB/s", "unpacks, MB/s"),
    )  # fmt: skip
    for dtype in DTYPES if not told.quick else DTYPES[:1]:
        found = _real_kv(dtype)
        if found is None:
            section.said = "Not measured: the demo model is not here (`pdd up` makes it), or torch is not installed."
            return section
        content, chunk = found
        pieces = [memoryview(content)[at : at + chunk] for at in range(0, len(content) - chunk + 1, chunk)]
        for name, codec in codecs().items():
            packed, pack_s, unpack_s = _through(codec, pieces[: told.times(16, 6)], dtype)
            raw = len(pieces[: told.times(16, 6)]) * chunk
            section.rows.append(
                (dtype, name, f"{raw / packed:.3f}", f"{raw / pack_s / MB:.0f}", f"{raw / unpack_s / MB:.0f}")
            )
            section.data[f"{dtype} {name}"] = [raw / packed, raw / pack_s, raw / unpack_s]
    return section


def _through(codec: Any, pieces: list[memoryview], dtype: str) -> tuple[int, float, float]:
    packed_bytes, pack_s, unpack_s = 0, 0.0, 0.0
    target = memoryview(bytearray(pieces[0].nbytes))
    for piece in pieces:
        began = time.thread_time()
        packed = b"".join(codec.pack(piece, dtype))
        between = time.thread_time()
        codec.unpack(memoryview(packed), target, dtype)
        pack_s, unpack_s = pack_s + between - began, unpack_s + time.thread_time() - between
        packed_bytes += len(packed)
        assert target == piece
    return packed_bytes, pack_s, unpack_s


def over_a_line(told: Told, tls: list[str]) -> Section:
    size = int(told(60, 20) * MB)
    section = Section(
        "Packing over a slow line", "", f"{size // MB} MB of real KV, TLS; the codec is the link's own choice.",
        ("dtype", "as it is, s", "packed, s", "faster by", "crossed / raw"),
    )  # fmt: skip
    with place(WAN) as where, tempfile.TemporaryDirectory() as folder:
        section.place = where.name
        for dtype in DTYPES if not told.quick else DTYPES[:1]:
            found = _real_kv(dtype)
            if found is None:
                section.said = (
                    "Not measured: the demo model is not here (`pdd up` makes it), or torch is not installed."
                )
                return section
            path = Path(folder) / dtype
            path.write_bytes(found[0])
            taken: dict[bool, list[float]] = {False: [], True: []}
            crossed = 0
            for _ in range(told.times(2, 1)):
                for packs in (False, True):
                    with where.pair(tls=tls, codecs=packs, kv=[str(path), dtype]) as pair:
                        pair.send(10 * MB)
                        crossed, seconds = pair.sent_bytes(pair.start(size))
                        taken[packs].append(seconds)
            gain = middle(taken[False]) / middle(taken[True])
            row = (dtype, spread(taken[False]), spread(taken[True]), f"{gain:.2f}", f"{crossed / size:.3f}")
            section.rows.append(row)
    return section


def _real_kv(dtype: str) -> tuple[bytes, int] | None:
    """Canonical KV of a text of the repository, and the bytes of one chunk. None where there is no model or no torch."""
    try:
        from .real_kv import chunks
    except ImportError:
        return None
    found = chunks(dtype, CHUNK_TOKENS)
    return (b"".join(found), len(found[0])) if found else None
