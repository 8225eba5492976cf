"""Prefixes by name: token ids -> chained hashes over a fleet-wide hash block.

Independent of page size, dtype and process, so that sites agree: blake2b, seeded by the fleet's fingerprint and the cache salt.
"""

import struct
from hashlib import blake2b

from .ids import BlockHash

HASH_BLOCK = 64  # tokens; every page size divides it
HASH_BYTES = 16


def root_hash(fingerprint: str, cache_salt: str) -> BlockHash:
    return BlockHash(blake2b(f"{fingerprint}\0{cache_salt}".encode(), digest_size=HASH_BYTES).digest())


def next_hash(parent: BlockHash, ids: tuple[int, ...]) -> BlockHash:
    """The name of the prefix that ends with this whole block of HASH_BLOCK ids."""
    packed = struct.pack(f"<{len(ids)}I", *ids)
    return BlockHash(blake2b(packed, key=parent, digest_size=HASH_BYTES).digest())


def block_hashes(ids: tuple[int, ...], fingerprint: str, cache_salt: str) -> list[BlockHash]:
    """One hash per whole block of `ids`, each naming everything up to its end."""
    hashes = []
    parent = root_hash(fingerprint, cache_salt)
    for start in range(0, len(ids) - HASH_BLOCK + 1, HASH_BLOCK):
        parent = next_hash(parent, ids[start : start + HASH_BLOCK])
        hashes.append(parent)
    return hashes


def pack(hashes: tuple[BlockHash, ...] | list[BlockHash]) -> bytes:
    return b"".join(hashes)


def unpack(packed: bytes) -> tuple[BlockHash, ...]:
    return tuple(BlockHash(packed[i : i + HASH_BYTES]) for i in range(0, len(packed), HASH_BYTES))
