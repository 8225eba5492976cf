"""A sender and a receiver, each a process, joined by whatever line lies between them."""

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

from .pages import tokens_of

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
        self._process.stdin.write(json.dumps({"command": command, **more}) + "\n")
        self._process.stdin.flush()

    def hear(self, kind: str, seconds: float = WAIT_S) -> dict[str, Any]:
        return self._of(kind).get(timeout=seconds)

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
        try:
            self.tell("quit")
        except (BrokenPipeError, OSError):
            pass
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Pair:
    """Use as a context."""

    def __init__(self, wrap: Wrap = here, host: str = "127.0.0.1", address: str = "", **options: Any) -> None:
        self._numbers = count(1)
        told = json.dumps(options)
        base = [sys.executable, "-m", "bench.line.end"]
        self.receiver = Process(wrap("b", [*base, "receiver", host, told]))
        self.address = address or self.receiver.hear("ready")["address"]
        sending_host = host if wrap is here else "127.0.0.1"
        self.sender = Process(wrap("a", [*base, "sender", sending_host, told]))
        self.sender.hear("ready")

    def __enter__(self) -> "Pair":
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self.sender, self.receiver):
            one.close()

    def start(self, size: int) -> str:
        """A transfer of about so many bytes; its name."""
        transfer, tokens = f"t{next(self._numbers)}", tokens_of(size)
        self.receiver.tell("expect", transfer=transfer, tokens=tokens)
        self.receiver.hear(f"expected {transfer}")
        self.sender.tell("send", transfer=transfer, tokens=tokens, address=self.address)
        return transfer

    def wait(self, transfer: str, seconds: float = WAIT_S) -> float:
        """Seconds from asking to the receiver's last answer."""
        return float(self.sender.hear(f"sent {transfer}", seconds)["seconds"])

    def send(self, size: int) -> float:
        return self.wait(self.start(size))

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)
