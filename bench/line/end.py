"""One end of the line as a process of its own: JSON commands in, JSON events out, a line each.

`python -m bench.line.end sender|receiver HOST OPTIONS`; the first line out names the address and the process. Commands: expect,
drop (receiver); send, cancel (sender); quit. Options are TcpOptions as JSON.
"""

import json
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from pdd.adapters.kv_tcp import TcpKvLink
from pdd.adapters.kv_tcp_socket import TcpOptions
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.effects import CloseTransfer, ExpectKv, OfferKv, OpenTransfer
from pdd.core.events import (
    Event,
    KvCloseAcked,
    KvClosed,
    KvDamaged,
    KvExpected,
    KvRefused,
    LineMeasured,
    TransferFailed,
)
from pdd.core.ids import Epoch, Key, Peer, RequestId, Role, TransferId

from .pages import BufferPages

SECRET = b"0123456789abcdef"
RECEIVER = Peer("b", Role.MAIN, "md", 1)
SENDER = Peer("a", Role.PREFILL, "p", 1)
STAGING_BYTES = 3 << 30


class Monotonic:
    now = staticmethod(time.monotonic)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        raise NotImplementedError("links over TCP have threads of their own")


class End:
    def __init__(self, role: str, host: str, options: TcpOptions, name: str = "") -> None:
        self.receives = role == "receiver"
        peer = RECEIVER if self.receives else Peer(SENDER.site, SENDER.role, name or "p", 1)
        self._out: queue.Queue[dict[str, Any]] = queue.Queue()
        self._began: dict[str, float] = {}
        self.link = TcpKvLink(
            peer, listen=(host, 0), fingerprint="f", source=BufferPages(size=1 << 20 if self.receives else 512 << 20),
            sink=self.sink, notes=MemoryNotes(), clock=Monotonic(), staging_bytes=STAGING_BYTES, options=options,
        )  # fmt: skip
        self.link.start()
        threading.Thread(target=self._print, daemon=True).start()
        self.say("ready", address=self.link.address)

    def say(self, event: str, **more: Any) -> None:
        self._out.put({"event": event, "at": time.monotonic(), **more})

    def _print(self) -> None:
        while True:
            print(json.dumps(self._out.get()), flush=True)

    def sink(self, event: Event) -> None:
        match event:
            case KvClosed(transfer):
                self.link.drop(transfer)
                self.say("landed", transfer=transfer)
            case KvExpected(transfer):
                self.say("expected", transfer=transfer)
            case KvCloseAcked(transfer, size):
                began = self._began.pop(transfer, 0.0)
                self.say("sent", transfer=transfer, bytes=size, seconds=time.monotonic() - began)
            case TransferFailed(transfer, reason) | KvDamaged(transfer, reason) | KvRefused(transfer, reason):
                self.say("failed", transfer=transfer, reason=reason)
            case LineMeasured(line):
                self.say("line", rate=line.bytes_per_s, rtt=line.rtt_s, queue=line.queue_s, loss=line.loss)

    def obey(self, told: dict[str, Any]) -> None:
        transfer = TransferId(told.get("transfer", ""))
        match told["command"]:
            case "expect":
                self.link.expect(ExpectKv(transfer, Epoch(1), SECRET, 0, told["tokens"]))
            case "drop":
                self.link.drop(transfer)
            case "send":
                key = Key(RequestId(transfer), Epoch(1))
                self._began[transfer] = time.monotonic()
                tokens = told["tokens"]
                self.link.open_transfer(
                    OpenTransfer(transfer, key, RECEIVER, told["address"], SECRET, "", near=False, tokens=tokens)
                )
                self.link.offer(OfferKv(transfer, 0, tokens))
                self.link.close_transfer(CloseTransfer(transfer, b"token 0"))
            case "cancel":
                self.link.cancel(transfer)
            case "usage":
                self.say("usage", cpu_s=time.process_time())


def main(words: list[str]) -> None:
    role, host, options = words[:3]
    known = {field.name for field in fields(TcpOptions)}
    told = json.loads(options)
    end = End(role, host, TcpOptions(**{k: v for k, v in told.items() if k in known}), told.get("name", ""))
    for line in sys.stdin:
        command = json.loads(line)
        if command["command"] == "quit":
            break
        end.obey(command)
    end.link.close()


if __name__ == "__main__":
    main(sys.argv[1:])
