"""KV within a site over NIXL: what crosses the connection is where a chunk lies, and the receiver reads it from there.

The receiver reads, so that only it writes its staging memory. NIXL takes the fastest transport of both machines (RDMA, shared memory,
TCP); UCX_TLS pins one. Everything else is the TCP link's: order, credit, resume, checksums. Needs `pip install --no-deps nixl nixl-cu12`.
"""

import importlib.util
import mmap
import threading
import time
from typing import Any
from uuid import uuid4

import msgspec

from ..core.errors import FrameError
from ..core.wire import checksum
from .kv_codecs import Codec
from .staging_arena import Arena

NAME = "nixl"
LENT_BYTES = 256 << 20  # chunks that wait to be read; touched as far as used
SMALL_BYTES = 64 << 10  # what is smaller crosses the connection itself
READ_S = 10.0
SPIN_S = 20e-6  # between two looks at a read; spinning harder slows the other side's


class Lent(msgspec.Struct, frozen=True, array_like=True):
    """Where a chunk lies at the sender, and what it must be."""

    agent: bytes  # NIXL's metadata of the sender
    address: int
    size: int
    checksum: int


def installed() -> bool:
    return importlib.util.find_spec("nixl") is not None


class NixlCarrier:
    """One NIXL agent, used from all lanes of any links. Whoever made it closes it, after them."""

    def __init__(self, small_bytes: int = SMALL_BYTES, lent_bytes: int = LENT_BYTES) -> None:
        from nixl._api import nixl_agent, nixl_agent_config

        self._agent = nixl_agent(f"pdd-{uuid4()}", nixl_agent_config(True, False, 0, backends=["UCX"]))
        self._small_bytes = small_bytes
        self._lock = threading.Lock()
        self._decoder = msgspec.msgpack.Decoder(Lent)
        self._memory = memoryview(mmap.mmap(-1, lent_bytes))
        self._arena = Arena(lent_bytes, self._memory)
        self._known = [self._register(self._memory)]
        self._metadata = self._agent.get_agent_metadata()
        self._peers: dict[bytes, str] = {}

    @property
    def codec(self) -> Codec:
        return Codec(self.lend, self.read, self.take_back)

    def close(self) -> None:
        with self._lock:
            for _, _, registered in self._known:
                self._agent.deregister_memory(registered)
            self._known.clear()

    def register(self, memory: memoryview) -> None:
        """Reads into this memory go there directly."""
        with self._lock:
            self._known.append(self._register(memory))

    def forget(self, memory: memoryview) -> None:
        """Before that memory goes."""
        with self._lock:
            at = _address(memory)
            for known in [one for one in self._known if one[0] == at]:
                self._agent.deregister_memory(known[2])
                self._known.remove(known)

    def _register(self, memory: memoryview) -> tuple[int, int, Any]:
        at = _address(memory)
        return at, at + memory.nbytes, self._agent.register_memory([(at, memory.nbytes, 0, "")], "DRAM")

    # -- sending ------------------------------------------------------------------------------------------------------

    def lend(self, payload: memoryview, dtype: str) -> list[memoryview]:
        """What crosses the connection instead of the payload; nothing where the payload should cross itself."""
        if payload.nbytes < self._small_bytes:
            return []
        with self._lock:
            place = self._arena.take(payload.nbytes)
        if place is None:
            return []
        offset, view = place
        view[:] = payload
        lent = Lent(self._metadata, self._known[0][0] + offset, payload.nbytes, checksum(view))
        return [memoryview(msgspec.msgpack.encode(lent))]

    def take_back(self, parts: list[memoryview]) -> None:
        """The chunk is answered, or its connection has ended. Whoever still reads finds another checksum."""
        lent = self._decoder.decode(parts[0])
        with self._lock:
            if self._known:
                self._arena.give_back(lent.address - self._known[0][0], lent.size)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def read(self, said: memoryview, target: memoryview, dtype: str) -> None:
        """Raises FrameError where it cannot be read, or is not what it should be."""
        try:
            lent = self._decoder.decode(said)
        except msgspec.MsgspecError as error:
            raise FrameError(f"no NIXL descriptor: {error}") from error
        if lent.size != target.nbytes:
            raise FrameError("the lent chunk has another size")
        at = _address(target)
        if any(start <= at and at + lent.size <= stop for start, stop, _ in self._known):
            self._read(lent, at)
        else:
            self._read_aside(lent, target)
        if checksum(target) != lent.checksum:
            raise FrameError("the lent chunk has changed")

    def _read_aside(self, lent: Lent, target: memoryview) -> None:
        with self._lock:
            place = self._arena.take(lent.size)
        if place is None:
            raise FrameError("no registered memory is free")
        try:
            self._read(lent, self._known[0][0] + place[0])
            target[:] = place[1]
        finally:
            with self._lock:
                self._arena.give_back(place[0], lent.size)

    def _read(self, lent: Lent, at: int) -> None:
        try:
            handle = self._begin(lent, at)
        except Exception as error:  # NIXL's own errors have no common class
            raise FrameError(f"NIXL cannot read: {error}") from error
        limit = time.monotonic() + READ_S
        try:
            while (state := self._state(handle)) == "PROC" and time.monotonic() < limit:
                time.sleep(SPIN_S)
        finally:
            with self._lock:
                self._agent.release_xfer_handle(handle)
        if state != "DONE":
            raise FrameError(f"NIXL's read ended as {state}")

    def _begin(self, lent: Lent, at: int) -> Any:
        with self._lock:
            peer = self._peers.get(lent.agent)
            if peer is None:
                name = self._agent.add_remote_agent(lent.agent)
                peer = self._peers[lent.agent] = name.decode() if isinstance(name, bytes) else name
            here = self._agent.get_xfer_descs([(at, lent.size, 0)], "DRAM")
            there = self._agent.get_xfer_descs([(lent.address, lent.size, 0)], "DRAM")
            handle = self._agent.initialize_xfer("READ", here, there, peer)
            if self._agent.transfer(handle) == "ERR":
                raise OSError("the transfer did not begin")
            return handle

    def _state(self, handle: Any) -> str:
        with self._lock:
            return str(self._agent.check_xfer_state(handle))


def _address(memory: memoryview) -> int:
    import numpy

    return int(numpy.frombuffer(memory, numpy.uint8).ctypes.data)
