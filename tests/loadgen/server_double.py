"""A small OpenAI-compatible server for the load generator to measure: it writes words at a pace, and misbehaves on request."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

END_S = 10.0


@dataclass
class Double:
    """`seen` holds every streamed body. `trouble`: {how many streams before it: what}, one of error, cut, refuse, silent."""

    first_s: float = 0.02
    token_s: float = 0.005
    takes_ids: bool = True
    has_completions: bool = True
    trouble: dict[int, str] = field(default_factory=dict)
    report: dict[str, Any] | None = None
    token_ids: bool = False
    seen: list[dict[str, Any]] = field(default_factory=list)
    busy: int = 0
    most_at_once: int = 0

    def app(self) -> Starlette:
        routes = [Route("/v1/models", self.models), Route("/v1/chat/completions", self.answer, methods=["POST"])]
        if self.has_completions:
            routes.append(Route("/v1/completions", self.answer, methods=["POST"]))
        return Starlette(routes=routes)

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "double", "object": "model"}]})

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        if isinstance(body.get("prompt"), list) and not self.takes_ids:
            return JSONResponse({"error": {"message": "prompt must be a string"}}, 400)
        if not body["stream"]:
            return JSONResponse({"choices": [{"text": "x", "finish_reason": "length"}]})
        trouble = self.trouble.get(len(self.seen), "")
        self.seen.append(body | {"at": time.perf_counter()})
        if trouble == "refuse":
            return JSONResponse({"error": {"message": "too busy"}}, 429)
        return StreamingResponse(self.stream(body, trouble), media_type="text/event-stream")

    async def stream(self, body: dict[str, Any], trouble: str) -> AsyncIterator[bytes]:
        self.busy += 1
        self.most_at_once = max(self.most_at_once, self.busy)
        try:
            await asyncio.sleep(3600 if trouble == "silent" else self.first_s)
            count = body["max_tokens"]
            for index in range(count):
                if trouble and index == count // 2:
                    if trouble == "error":
                        yield _event({"error": {"message": "lost a worker"}})
                    return
                yield _event({"choices": [self._choice(body, index)]})
                await asyncio.sleep(self.token_s)
            closing: dict[str, Any] = {"choices": [{"index": 0, "finish_reason": "length", "text": "", "delta": {}}]}
            if self.report:
                closing["pdd"] = self.report
            yield _event(closing)
            prompt = body.get("prompt") or body["messages"][0]["content"]
            tokens = len(prompt) if isinstance(prompt, list) else len(prompt.split())
            usage = {"prompt_tokens": tokens, "completion_tokens": count, "prompt_tokens_details": {"cached_tokens": 3}}
            yield _event({"choices": [], "usage": usage})
            yield b"data: [DONE]\n\n"
        finally:
            self.busy -= 1

    def _choice(self, body: dict[str, Any], index: int) -> dict[str, Any]:
        word = f" w{index}"
        choice: dict[str, Any] = {"index": 0, "text": word, "delta": {"content": word}, "finish_reason": None}
        if self.token_ids:
            choice["token_ids"] = [5000 + index]
        return choice


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\r\n\r\n"


@contextmanager
def serving(double: Double) -> Iterator[str]:
    """The address of a server that runs in a thread until the block ends. Its socket listens before: nobody has to wait."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        config = uvicorn.Config(double.app(), log_level="error", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(END_S)
