"""One end of the line as a process of its own: JSON commands in, JSON events out, a line each.

`python -m bench.line.end sender|receiver HOST OPTIONS`; the first line out names the address. Commands: expect, drop (receiver);
send, cancel, lease (sender); usage; quit. OPTIONS is JSON: the fields of TcpOptions, and port, within, tls (the three files), codecs, nixl
(true), kv (a file of real KV and its dtype), layers, number (of several senders), owned (the line is, by whoever started us).
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from pdd.adapters.kv_codecs import codecs
from pdd.adapters.kv_nixl import NixlCarrier
from pdd.adapters.kv_tcp import TcpKvLink
from pdd.adapters.kv_tcp_socket import TcpOptions
from pdd.adapters.kv_tcp_tls import TlsFiles
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.effects import CloseTransfer, ExpectKv, OfferKv, OpenTransfer, PaceLine
from pdd.core.events import (
    Event,
    KvCloseAcked,
    KvClosed,
    KvDamaged,
    KvExpected,
    KvLanded,
    KvRefused,
    LineMeasured,
    LineWanted,
    TransferFailed,
)
from pdd.core.ids import Epoch, Key, Peer, RequestId, Role, TransferId
from pdd.core.messages import LineLease
from pdd.core.roles.lessee import Lessee

from .pages import pages

SECRET = b"0123456789abcdef"
RECEIVER = Peer("b", Role.MAIN, "md", 1)
OWNER = Peer("a", Role.ROUTER, "r", 1)
STAGING_BYTES = 3 << 30
LARGE_BYTES = 50_000_000
OPTIONS = {field.name for field in fields(TcpOptions)}


class Monotonic:
    now = staticmethod(time.monotonic)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        raise NotImplementedError("links over TCP have threads of their own")


def sender(number: int) -> Peer:
    return Peer("a", Role.PREFILL, f"p{number}", 1)


class End:
    def __init__(self, role: str, host: str, told: dict[str, Any]) -> None:
        self.receives, self.near = role == "receiver", bool(told.get("within"))
        self._out: queue.Queue[dict[str, Any]] = queue.Queue()
        self._said = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what libraries print is no event
        self._began: dict[str, float] = {}
        self._expected: dict[str, int] = {}
        self._landed = 0
        self._lessee = Lessee()
        source = pages(told.get("kv"), told.get("layers", 0), small=self.receives)
        self._per_token = source.kv_shape.bytes_per_token
        certificate, key, authority = map(Path, told.get("tls") or ("", "", ""))
        tls = TlsFiles(certificate, key, authority) if told.get("tls") else None
        self.link = TcpKvLink(
            RECEIVER if self.receives else sender(told.get("number", 0)),
            listen=(host, told.get("port", 0) if self.receives else 0),
            fingerprint="f",
            source=source,
            sink=self.sink,
            notes=MemoryNotes(),
            clock=Monotonic(),
            staging_bytes=STAGING_BYTES,
            options=TcpOptions(**{key: value for key, value in told.items() if key in OPTIONS}),
            tls=tls,
            codecs=codecs() if told.get("codecs") else {},
            carrier=NixlCarrier() if told.get("nixl") else None,
            owned=bool(told.get("owned")),
        )
        self.link.start()
        threading.Thread(target=self._print, daemon=True).start()
        self.say("ready", address=self.link.address)

    def say(self, event: str, **more: Any) -> None:
        self._out.put({"event": event, "at": time.monotonic(), **more})

    def _print(self) -> None:
        while True:
            print(json.dumps(self._out.get()), file=self._said, flush=True)

    def sink(self, event: Event) -> None:
        match event:
            case KvLanded(transfer, start, stop):
                if self._expected.get(transfer, 0) >= LARGE_BYTES:
                    self._landed += (stop - start) * self._per_token
            case KvClosed(transfer):
                self.link.drop(transfer)
            case KvExpected(transfer):
                self.say("expected", transfer=transfer)
            case KvCloseAcked(transfer, size):
                began = self._began.pop(transfer, 0.0)
                self.say("sent", transfer=transfer, bytes=size, seconds=time.monotonic() - began)
            case TransferFailed(transfer, reason) | KvDamaged(transfer, reason) | KvRefused(transfer, reason):
                self.say("failed", transfer=transfer, reason=reason)
            case LineWanted(wants):
                self._lessee.wanted(event, [OWNER])
                self.say("wants", wants=msgspec.to_builtins(wants))
            case LineMeasured(line):
                self.say("line", rate=line.bytes_per_s, rtt=line.rtt_s, queue=line.queue_s, loss=line.loss)

    def obey(self, told: dict[str, Any]) -> None:
        transfer = TransferId(told.get("transfer", ""))
        match told["command"]:
            case "expect":
                self._expected[transfer] = told["tokens"] * self._per_token
                self.link.expect(ExpectKv(transfer, Epoch(1), SECRET, 0, told["tokens"]))
            case "drop":
                self.link.drop(transfer)
            case "send":
                key = Key(RequestId(transfer), Epoch(1))
                self._began[transfer] = time.monotonic()
                tokens = told["tokens"]
                self.link.open_transfer(
                    OpenTransfer(transfer, key, RECEIVER, told["address"], SECRET, "", near=self.near, tokens=tokens)
                )
                self.link.offer(OfferKv(transfer, 0, tokens))
                self.link.close_transfer(CloseTransfer(transfer, b"token 0"))
            case "cancel":
                self.link.cancel(transfer)
            case "lease":
                lease = msgspec.convert(told["lease"], LineLease)
                for effect in self._lessee.leased(OWNER, lease, time.monotonic()):
                    assert isinstance(effect, PaceLine)
                    self.link.pace(effect)
            case "landed":
                self.say("landed", bytes=self._landed)
            case "usage":
                self.say("usage", cpu_s=time.process_time())


def main(words: list[str]) -> None:
    role, host, options = words
    end = End(role, host, json.loads(options))
    for line in sys.stdin:
        command = json.loads(line)
        if command["command"] == "quit":
            break
        end.obey(command)
    end.link.close()


if __name__ == "__main__":
    main(sys.argv[1:])
