"""Streamed completions for survival tests: read in the background, so that a test can act while tokens come.

Each event names its tokens by `logprobs`, so every token shows at once, whatever the text holds back.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from pdd.adapters.engine_scripted import Script, reference
from pdd.cli.deployment import Deployment
from pdd.cli.fleet import Engine, Fleet
from pdd.core.sampling import Sampling
from tests.e2e.client import Answer, Client, answer_of, hooks, until
from tests.e2e.conftest import fleet
from tests.models import END, VOCABULARY

PATIENCE_S = 40.0  # for any stream to end, whatever happened to it
SCRIPT = Script(vocab=VOCABULARY, end_token=END)

# Time-outs in the proportions of the defaults and shorter, so that a loss is noticed while a test waits.
QUICK = {
    "BEAT_S": "0.2",
    "SUSPECT_S": "1.5",
    "LEASE_S": "4",
    "RETRY_S": "0.3",
    "TICKET_S": "0.5",
    "KV_STALL_S": "2",
    "STALL_S": "2.5",
    "ASK_SILENCE_S": "0.6",
    "RELAY_WAIT_S": "2",
    "HANDOVER_WAIT_S": "2",
    "GIVE_UP_S": "12",
}


def survivors(
    model: Path,
    engine: Engine = Engine.SCRIPTED,
    settings: dict[str, str] | None = None,
    time_outs: dict[str, str] = QUICK,
    **changes: Any,
) -> Fleet:
    """Quick to notice a loss. Scripted: 16 prompt tokens or one output in about 13 ms, so that each stage can be met."""
    wanted = fleet(model, engine, **changes)
    told = {f"TIMEOUTS__{name}": value for name, value in time_outs.items()}
    told |= {"SCRIPTED_COST": "h100-70b-tp8", "CHUNK_TOKENS": "16", "MAX_CONTEXT": "4096", "PAGES": "2048"}
    return replace(wanted, settings={**wanted.settings, **told, **(settings or {})})


def baseline(ids: Sequence[int], count: int) -> list[int]:
    """What one scripted engine alone writes."""
    return reference(ids, Sampling(count), len(ids), SCRIPT)


class Stream:
    """Begins at once. `at`: when each token came, in monotonic seconds."""

    def __init__(
        self, client: Client, prompt: list[int], max_tokens: int, *, route: str = "", fence: int = 0, **fields: object
    ) -> None:
        self.prompt, self.max_tokens = prompt, max_tokens
        self.at: list[float] = []
        self.began = time.monotonic()
        self.status = 0
        self.error: dict[str, Any] = {}
        self._http = client.http
        asked = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        self._body = asked | {"stream": True, "logprobs": 0, "stream_options": {"include_usage": True}} | fields
        self._headers = hooks(route, fence)
        self._whole: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._done = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def tokens(self) -> int:
        return len(self.at)

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def answer(self) -> Answer:
        """The whole answer. It must have come within PATIENCE_S, without an error, and be what one engine writes."""
        self._thread.join(PATIENCE_S)
        assert self.ended, f"not ended after {PATIENCE_S} s: {self.tokens} of {self.max_tokens} tokens"
        assert not self.error, self.error
        assert self._done, f"the connection ended after {self.tokens} tokens without [DONE]"
        self._whole["usage"] = self._usage
        return answer_of(self._whole)

    def right(self) -> Answer:
        """The whole answer, equal to the scripted baseline."""
        answer = self.answer()
        assert answer.ids == baseline(self.prompt, self.max_tokens)
        assert self.tokens == self.max_tokens  # each token came to the client once
        return answer

    def _read(self) -> None:
        with (
            suppress(httpx.RemoteProtocolError, httpx.ReadError),  # told by `answer`
            self._http.stream("POST", "/v1/completions", json=self._body, headers=self._headers) as response,
        ):
            self.status = response.status_code
            if response.status_code != 200:
                self.error = json.loads(response.read())["error"]
                return
            for line in response.iter_lines():
                if line.startswith("data: "):
                    self._take(line.removeprefix("data: "))

    def _take(self, data: str) -> None:
        if data == "[DONE]":
            self._done = True
            return
        event = json.loads(data)
        if "error" in event:
            self.error = event["error"]
            return
        self._usage = event.get("usage") or self._usage
        for choice in event["choices"]:
            if choice["logprobs"]:
                self.at += [time.monotonic()] * len(choice["logprobs"]["tokens"])
            if choice["finish_reason"]:
                self._whole = event


def kill(deployment: Deployment, name: str) -> None:
    """SIGKILL: no last word, no closed connection but what the kernel says. Returns when it is dead."""
    os.kill(deployment.record(name).pid, signal.SIGKILL)
    until(lambda: name in {record.name for record in deployment.ended()}, seconds=5)


def workers(client: Client) -> dict[str, dict[str, Any]]:
    """By name, as the router sees them."""
    status = httpx.get(f"{client.deployment.router_url}/status", timeout=PATIENCE_S, trust_env=False).json()
    return {worker["name"]: worker for worker in status["workers"]}


def alive(client: Client, *names: str) -> bool:
    """Does the router hear all of them, none draining?"""
    seen = workers(client)
    return all(name in seen and seen[name]["alive"] and not seen[name]["draining"] for name in names)


def mend(client: Client) -> None:
    """Begin what has ended, and wait until the router hears everybody and nobody holds anything."""
    deployment = client.deployment
    for record in deployment.ended():
        deployment.begin(record.name)
    services = [record.name for record in deployment.run.running() if "http" in record.ports]
    until(lambda: alive(client, *(name for name in services if name != "router")), seconds=30)
    until(lambda: not client.held(), seconds=30)


def counted(client: Client, part: str, name: str, **labels: str) -> float:
    """One series of one process; 0 where it has not been counted yet."""
    port = client.deployment.record(part).ports["http"]
    text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S, trust_env=False).text
    inside = ",".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
    series = f"{name}{{{inside}}} " if inside else f"{name} "
    return sum(float(line.removeprefix(series)) for line in text.splitlines() if line.startswith(series))
