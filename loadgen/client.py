"""One request: sent, streamed, timed. What the client sees is the measure; what the server tells of itself is kept beside it."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson

from pdd.sim.report import Gaps, Record
from pdd.sim.workload import Turn

from .sse import EventReader
from .target import PromptKind, Target

HEADERS = {"x-pdd-report": "1"}  # others ignore it
DONE = b"[DONE]"
FILLER_FROM = 100  # ids for answers whose own ids the server does not tell


class Broken(Exception):
    """No whole answer; the message says why."""


@dataclass(slots=True)
class Answer:
    """What came so far. `texts`: one for each event that brought any."""

    texts: list[str] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    finished: bool = False


class Client:
    """`now`: seconds from the run's start. `seen(tokens)` is called as tokens come."""

    def __init__(
        self, http: httpx.AsyncClient, target: Target, gaps: Gaps, max_tokens: int, seen: Callable[[int], None]
    ) -> None:
        self._http, self._target, self._gaps, self._max_tokens, self._seen = http, target, gaps, max_tokens, seen
        self._started = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._started

    def restart_clock(self) -> None:
        self._started = time.perf_counter()

    async def ask(self, turn: Turn, record: Record) -> tuple[int, ...]:
        """Fills the record; returns the answer's ids for the history (none after an error)."""
        record.sent_s = self.now()
        answer = Answer()
        try:
            await self._stream(turn, record, answer)
        except Broken as broken:
            record.error = str(broken)
        except httpx.HTTPError as error:
            record.error = f"{type(error).__name__} {error}".strip()
        record.prompt = answer.usage.get("prompt_tokens", len(turn.ids))
        record.outputs = answer.usage.get("completion_tokens", len(answer.texts))
        record.last_s = record.last_s or self.now()
        _tell(record, answer)
        return () if record.error else self._ids(turn, answer, record.outputs)

    async def _stream(self, turn: Turn, record: Record, answer: Answer) -> None:
        target = self._target
        body = orjson.dumps(target.body(turn.ids, turn.outputs, self._max_tokens))
        headers = HEADERS | {"content-type": "application/json"}
        async with self._http.stream("POST", target.url + target.path, content=body, headers=headers) as response:
            if not response.is_success:
                await response.aread()
                raise Broken(f"HTTP {response.status_code} {_message(response.content)}")
            reader = EventReader()
            async for chunk in response.aiter_raw():
                now = self.now()
                for event in reader.feed(chunk):
                    if event == DONE:
                        answer.finished = True
                    else:
                        self._event(orjson.loads(event), now, record, answer)
        if not answer.finished:
            raise Broken("the stream ended without [DONE]")

    def _event(self, event: dict[str, Any], now: float, record: Record, answer: Answer) -> None:
        if "error" in event:
            raise Broken(f"in the stream: {event['error'].get('message', event['error'])}")
        answer.usage = event.get("usage") or answer.usage
        answer.report = event.get("pdd") or answer.report
        for choice in event.get("choices") or ():
            answer.ids += choice.get("token_ids") or ()
            text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            if text:
                self._text(text, now, record, answer)

    def _text(self, text: str, now: float, record: Record, answer: Answer) -> None:
        answer.texts.append(text)
        self._seen(1)
        if record.first_s is None:
            record.first_s = now
        else:
            gap = now - (record.last_s or now)
            record.second_s = record.second_s or now
            record.gap_s = max(record.gap_s, gap)
            self._gaps.add(gap)
        record.last_s = now

    def _ids(self, turn: Turn, answer: Answer, outputs: int) -> tuple[int, ...]:
        if self._target.kind is not PromptKind.IDS:
            return self._target.words.keep("".join(answer.texts), max(1, outputs))
        known = answer.report.get("ids") or answer.ids
        return tuple(known) or tuple(FILLER_FROM + i % 97 for i in range(outputs))


def _message(body: bytes) -> str:
    """An OpenAI error's own words, else the beginning of whatever came."""
    try:
        return str(orjson.loads(body)["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body[:200].decode(errors="replace")


def _tell(record: Record, answer: Answer) -> None:
    """What a PDD router reports, and what others say of their cache."""
    report = answer.report
    cached = (answer.usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached is not None:
        record.hit["prefill"] = cached
    record.hit |= report.get("hit", {})
    record.route = report.get("route", "")
    record.epochs = report.get("epochs", 1)
    for role, start, stop in report.get("spoke", ()):
        record.shares[role] = record.shares.get(role, 0) + stop - start
    for transfer in report.get("transfers", ()):
        if transfer["way"] == "wan":
            record.wan_bytes += transfer["bytes"]
            record.wan_s = max(record.wan_s, transfer["seconds"])
        else:
            record.near_bytes += transfer["bytes"]
