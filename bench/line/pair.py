"""A receiver and its senders, each a process, joined by whatever line lies between them."""

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from .owner import Owner
from .pages import shape_of

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 120.0

Wrap = Callable[[str, Sequence[str]], list[str]]  # (site, command) -> the command at that site


def here(site: str, words: Sequence[str]) -> list[str]:
    return list(words)


class Process:
    """One end. `events` of each kind wait in a queue of their own."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self._events: dict[str, queue.Queue[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _of(self, kind: str) -> queue.Queue[dict[str, Any]]:
        with self._lock:
            return self._events.setdefault(kind, queue.Queue())

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            transfer = event.get("transfer")
            self._of(f"{event['event']} {transfer}" if transfer else event["event"]).put(event)
            if event["event"] == "failed":
                print("failed:", event, file=sys.stderr)

    def tell(self, command: str, **more: Any) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps({"command": command, **more}) + "\n")
            self._process.stdin.flush()

    def hear(self, kind: str, seconds: float = WAIT_S, unless: str = "") -> dict[str, Any]:
        """The next event of that kind. Raises RuntimeError where the process has ended, or has said `unless`."""
        limit = time.monotonic() + seconds
        while True:
            try:
                return self._of(kind).get(timeout=1.0)
            except queue.Empty:
                if self._process.poll() is not None or (unless and self.has_said(unless)):
                    raise RuntimeError(f"an end of the line did not say {kind!r}") from None
                if time.monotonic() > limit:
                    raise

    def has_said(self, kind: str) -> bool:
        return not self._of(kind).empty()

    def heard(self, kind: str) -> list[dict[str, Any]]:
        """All that waits."""
        waiting, found = self._of(kind), []
        while not waiting.empty():
            found.append(waiting.get())
        return found

    def cpu_s(self) -> float:
        self.tell("usage")
        return float(self.hear("usage")["cpu_s"])

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.tell("quit")
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Pair:
    """Use as a context. More senders than one may have an `owned` line: then the line's owner of the product leases it to them."""

    def __init__(
        self, wrap: Wrap = here, host: str = "127.0.0.1", address: str = "", senders: int = 1, **options: Any
    ) -> None:
        self._numbers = count(1)
        self._per_token = shape_of(options.get("kv"), options.get("layers", 0)).bytes_per_token
        base = [sys.executable, "-m", "bench.line.end"]
        self.receiver = Process(wrap("b", [*base, "receiver", host, json.dumps(options)]))
        self.address = address or self.receiver.hear("ready")["address"]
        sending_host = host if wrap is here else "127.0.0.1"
        told = [json.dumps(options | {"number": number}) for number in range(senders)]
        self.senders = [Process(wrap("a", [*base, "sender", sending_host, one])) for one in told]
        for one in self.senders:
            one.hear("ready")
        self.sender = self.senders[0]
        self._sender_of: dict[str, Process] = {}
        self._owner = Owner(self.senders) if options.get("owned") else None

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        if self._owner:
            self._owner.close()
        for one in (*self.senders, self.receiver):
            one.close()

    def start(self, size: int, sender: int = 0) -> str:
        """A transfer of about so many bytes; its name."""
        transfer, tokens = f"t{next(self._numbers)}", max(1, round(size / self._per_token))
        self.receiver.tell("expect", transfer=transfer, tokens=tokens)
        self.receiver.hear(f"expected {transfer}")
        self._sender_of[transfer] = self.senders[sender]
        self.senders[sender].tell("send", transfer=transfer, tokens=tokens, address=self.address)
        return transfer

    def wait(self, transfer: str, seconds: float = WAIT_S) -> float:
        """Seconds from asking to the receiver's last answer."""
        sender = self._sender_of[transfer]
        return float(sender.hear(f"sent {transfer}", seconds, f"failed {transfer}")["seconds"])

    def send(self, size: int, sender: int = 0) -> float:
        return self.wait(self.start(size, sender))

    def finished(self, transfer: str) -> bool:
        return self._sender_of[transfer].has_said(f"sent {transfer}")

    def landed_bytes(self) -> int:
        """Of all transfers of at least LARGE_BYTES, by now."""
        self.receiver.tell("landed")
        return int(self.receiver.hear("landed")["bytes"])

    def cancel(self, transfer: str) -> None:
        self._sender_of[transfer].tell("cancel", transfer=transfer)
        self.receiver.tell("drop", transfer=transfer)

    def sent_bytes(self, transfer: str) -> tuple[int, float]:
        """Wait for it: payload bytes as they crossed, and seconds."""
        done = self._sender_of[transfer].hear(f"sent {transfer}", unless=f"failed {transfer}")
        return int(done["bytes"]), float(done["seconds"])

    def cpu_s(self) -> float:
        """Of both processes, since they began."""
        return self.sender.cpu_s() + self.receiver.cpu_s()
