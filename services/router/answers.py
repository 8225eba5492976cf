"""OpenAI's answer shapes, as bytes ready to be written. What is the same in every chunk of a stream is built once."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from pdd.core.effects import RequestReport

from .choice import Piece, TokenEntry
from .text import ModelText
from .tool_calls import CallPart

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
LOWEST_LOGPROB = -9999.0  # JSON has no infinity


@dataclass(slots=True)
class Outcome:
    """One whole choice. `report` is None unless the client asked for it and may have it."""

    index: int
    piece: Piece = field(default_factory=Piece)
    finish: str | None = None
    report: RequestReport | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """`cached` counts what prefill found in its cache, and only that."""

    prompt: int
    completion: int
    cached: int

    def as_dict(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


class Answers(Protocol):
    """How one endpoint's answers look. Streamed parts are whole SSE events."""

    def opening(self, index: int) -> bytes: ...

    def piece(self, index: int, piece: Piece) -> bytes: ...

    def closing(self, index: int, finish: str, report: RequestReport | None) -> bytes: ...

    def usage(self, usage: Usage) -> bytes: ...

    def whole(self, outcomes: Sequence[Outcome], usage: Usage) -> bytes: ...


class ChatAnswers:
    def __init__(self, name: str, model: str, text: ModelText, *, with_usage: bool) -> None:
        self._text = text
        self._frame = _Frame(f"chatcmpl-{name}", "chat.completion", model, with_usage)

    def opening(self, index: int) -> bytes:
        return self._frame.event(
            b'%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null' % index
        )

    def piece(self, index: int, piece: Piece) -> bytes:
        entries = piece.entries
        delta: dict[str, Any] = {}
        logprobs = orjson.dumps(chat_logprobs(self._text, entries)) if entries else b"null"
        if piece.text or not piece.calls:
            delta["content"] = piece.text
        if piece.calls:
            delta["tool_calls"] = [call_delta(part) for part in piece.calls]
        return self._frame.event(
            b'%d,"delta":%b,"logprobs":%b,"finish_reason":null' % (index, orjson.dumps(delta), logprobs)
        )

    def closing(self, index: int, finish: str, report: RequestReport | None) -> bytes:
        return self._frame.event(
            b'%d,"delta":{},"logprobs":null,"finish_reason":%b' % (index, orjson.dumps(finish)), report
        )

    def usage(self, usage: Usage) -> bytes:
        return self._frame.usage(usage)

    def whole(self, outcomes: Sequence[Outcome], usage: Usage) -> bytes:
        choices = [
            {
                "index": outcome.index,
                "message": message(outcome.piece),
                "logprobs": chat_logprobs(self._text, outcome.piece.entries) if outcome.piece.entries else None,
                "finish_reason": outcome.finish,
            }
            for outcome in outcomes
        ]
        return self._frame.whole(choices, outcomes, usage)


class CompletionAnswers:
    """`echoes` holds, by choice, the prompt's text where the client wants it repeated, else ""."""

    def __init__(self, name: str, model: str, text: ModelText, *, with_usage: bool, echoes: Sequence[str] = ()) -> None:
        self._text = text
        self._echoes = echoes
        self._frame = _Frame(f"cmpl-{name}", "text_completion", model, with_usage, chunk="text_completion")

    def opening(self, index: int) -> bytes:
        echo = self._echo(index)
        return self.piece(index, Piece(echo)) if echo else b""

    def piece(self, index: int, piece: Piece) -> bytes:
        logprobs = orjson.dumps(self._logprobs(index, piece.entries)) if piece.entries else b"null"
        return self._frame.event(
            b'%d,"text":%b,"logprobs":%b,"finish_reason":null' % (index, orjson.dumps(piece.text), logprobs)
        )

    def closing(self, index: int, finish: str, report: RequestReport | None) -> bytes:
        return self._frame.event(
            b'%d,"text":"","logprobs":null,"finish_reason":%b' % (index, orjson.dumps(finish)), report
        )

    def usage(self, usage: Usage) -> bytes:
        return self._frame.usage(usage)

    def whole(self, outcomes: Sequence[Outcome], usage: Usage) -> bytes:
        choices = [
            {
                "index": outcome.index,
                "text": self._echo(outcome.index) + outcome.piece.text,
                "logprobs": self._logprobs(outcome.index, outcome.piece.entries) if outcome.piece.entries else None,
                "finish_reason": outcome.finish,
            }
            for outcome in outcomes
        ]
        return self._frame.whole(choices, outcomes, usage)

    def _echo(self, index: int) -> str:
        return self._echoes[index] if self._echoes else ""

    def _logprobs(self, index: int, entries: Sequence[TokenEntry]) -> dict[str, Any]:
        shift = len(self._echo(index))
        return {
            "tokens": [token_text(self._text, entry.token) for entry in entries],
            "token_logprobs": [_finite(entry.logprobs.chosen) for entry in entries],
            "top_logprobs": [
                {token_text(self._text, token): _finite(value) for token, value in entry.logprobs.top}
                for entry in entries
            ],
            "text_offset": [shift + entry.offset for entry in entries],
        }


class _Frame:
    """Around every choice: id, object, created, model. One id and one `created` a stream."""

    def __init__(self, name: str, kind: str, model: str, with_usage: bool, chunk: str = "") -> None:
        self._head = {"id": name, "object": kind, "created": int(time.time()), "model": model}
        head = orjson.dumps(self._head | {"object": chunk or f"{kind}.chunk"})[:-1]
        self._start = b"data: " + head + b',"choices":[{"index":'
        self._empty = b"data: " + head + b',"choices":[],"usage":'
        self._stop = b'}],"usage":null' if with_usage else b"}]"

    def event(self, choice: bytes, report: RequestReport | None = None) -> bytes:
        if report is None:
            return b"%b%b%b}\n\n" % (self._start, choice, self._stop)
        return b'%b%b%b,"pdd":%b}\n\n' % (self._start, choice, self._stop, orjson.dumps(report))

    def usage(self, usage: Usage) -> bytes:
        return b"%b%b}\n\n" % (self._empty, orjson.dumps(usage.as_dict()))

    def whole(self, choices: list[dict[str, Any]], outcomes: Sequence[Outcome], usage: Usage) -> bytes:
        body: dict[str, Any] = self._head | {"choices": choices, "usage": usage.as_dict()}
        reports = [outcome.report for outcome in outcomes if outcome.report is not None]
        if reports:
            body["pdd"] = reports[0] if len(outcomes) == 1 else reports
        return orjson.dumps(body)


def call_delta(part: CallPart) -> dict[str, Any]:
    if not part.name:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    function = {"name": part.name, "arguments": part.arguments}
    return {"index": part.index, "id": part.id, "type": "function", "function": function}


def message(piece: Piece) -> dict[str, Any]:
    """A whole one; its calls put together from their parts."""
    calls: list[dict[str, Any]] = []
    for part in piece.calls:
        if part.name:
            calls.append({"id": part.id, "type": "function", "function": {"name": part.name, "arguments": ""}})
        calls[part.index]["function"]["arguments"] += part.arguments
    if not calls:
        return {"role": "assistant", "content": piece.text}
    return {"role": "assistant", "content": piece.text or None, "tool_calls": calls}


def chat_logprobs(text: ModelText, entries: Sequence[TokenEntry]) -> dict[str, Any]:
    return {
        "content": [
            _chat_token(text, entry.token, entry.logprobs.chosen)
            | {"top_logprobs": [_chat_token(text, token, value) for token, value in entry.logprobs.top]}
            for entry in entries
        ]
    }


def token_text(text: ModelText, token: int) -> str:
    return text.bytes_of(token).decode(errors="replace")


def _chat_token(text: ModelText, token: int, logprob: float) -> dict[str, Any]:
    return {"token": token_text(text, token), "logprob": _finite(logprob), "bytes": list(text.bytes_of(token))}


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST_LOGPROB)
