"""The text layer with a scripted machine behind it, in one event loop: over ASGI, or on a free loopback port."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import httpx
import uvicorn
from fastapi import FastAPI

from pdd.adapters.grammar import Grammars
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.effects import Complete, Deliver, Reject, RequestReport
from pdd.core.events import Event, RequestEnded, RequestSubmitted
from pdd.core.ids import Epoch, RequestId, Role
from pdd.core.messages import Written
from pdd.core.sampling import Finish, TokenLogprobs
from pdd.runtime.health import Health, Stage
from services.router.abortable import AbortableHttp
from services.router.app import create_app
from services.router.bounds import Bounds
from services.router.open_requests import OpenRequests
from services.router.settings import EdgeSettings
from services.router.text import ModelText
from tests.contract.text_model import CONTEXT

WAIT_S = 5.0
Answer = Callable[[RequestSubmitted], Iterable[Deliver | Complete | Reject]]


class ScriptedMachine:
    """Stands where the driver and its machine stand: keeps what it hears, says what a test tells it to.

    `closes`: it answers a stop string's RequestEnded with Complete, as the router machine does.
    """

    def __init__(self, text: OpenRequests) -> None:
        self.heard: list[Event] = []
        self.answer: Answer | None = None
        self.closes = True
        self.report = RequestReport(route="P-RLD-MD", hit={"prefill": 7, "main_decode": 9})
        self._text = text
        self._changed = asyncio.Event()

    def submit(self, event: Event) -> None:
        self.heard.append(event)
        self._changed.set()
        loop = asyncio.get_running_loop()
        if isinstance(event, RequestSubmitted) and self.answer is not None:
            for effect in self.answer(event):
                loop.call_soon(self.say, effect)
        if isinstance(event, RequestEnded) and event.reason == "stop" and self.closes:
            loop.call_soon(self.say, Complete(event.request, Finish("stop"), self.report))

    def say(self, effect: Deliver | Complete | Reject) -> None:
        match effect:
            case Deliver():
                self._text.deliver(effect)
            case Complete():
                self._text.complete(effect)
            case Reject():
                self._text.reject(effect)

    def deliver(
        self,
        request: RequestId,
        ids: Iterable[int],
        start: int = 0,
        finish: Finish | None = None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> None:
        self.say(Deliver(request, Written(request, Epoch(1), start, tuple(ids), logprobs, finish), Role.MAIN))

    def complete(self, request: RequestId, reason: str = "length") -> None:
        self.say(Complete(request, Finish(reason), self.report))

    def writes(
        self, ids: Iterable[int], *, reason: str = "length", stop_token: int | None = None, each: int = 1
    ) -> None:
        """Answer every request with these ids, `each` at a time, then completion."""
        whole = tuple(ids)

        def answer(asked: RequestSubmitted) -> Iterable[Deliver | Complete | Reject]:
            finish = Finish(reason, stop_token)
            for start in range(0, len(whole), each):
                part = whole[start : start + each]
                logprobs = (
                    tuple(TokenLogprobs(-0.5 * i, ((i, -1.5),)) for i in part) if asked.sampling.logprobs >= 0 else ()
                )
                last = finish if start + each >= len(whole) else None
                yield Deliver(asked.request, Written(asked.request, Epoch(1), start, part, logprobs, last), Role.MAIN)
            yield Complete(asked.request, finish, self.report)

        self.answer = answer

    def rejects(self, status: int, code: str, message: str, retry_after_s: float | None = None) -> None:
        self.answer = lambda asked: [Reject(asked.request, status, code, message, retry_after_s)]

    @property
    def asked(self) -> list[RequestSubmitted]:
        return [event for event in self.heard if isinstance(event, RequestSubmitted)]

    @property
    def ended(self) -> list[tuple[str, str]]:
        return [(event.request, event.reason) for event in self.heard if isinstance(event, RequestEnded)]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not holds():
                self._changed.clear()
                await self._changed.wait()


@dataclass
class Edge:
    app: FastAPI
    machine: ScriptedMachine
    text: ModelText
    open_requests: OpenRequests
    notes: MemoryNotes
    health: Health
    grammars: Grammars | None = None

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://edge")

    async def post(self, path: str, json: object, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client() as client:
            return await client.post(path, json=json, headers=named)

    async def chat(self, **fields: object) -> httpx.Response:
        return await self.post("/v1/chat/completions", HELLO | fields)

    def ids(self, text: str) -> tuple[int, ...]:
        return self.text.encode(text, special=False)


HELLO: dict[str, object] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}


def make_edge(text: ModelText, *, grammars: Grammars | None = None, **settings: object) -> Edge:
    """Inside the loop that will serve it. With `grammars`, workers that can bind an answer are there."""
    open_requests, notes, health = OpenRequests(), MemoryNotes(), Health("router", Stage.READY)
    machine = ScriptedMachine(open_requests)
    told = EdgeSettings(**({"model": "tiny", "max_context": CONTEXT, "report_s": WAIT_S} | settings))  # type: ignore[arg-type]
    bounds = Bounds(grammars, lambda feature: True)
    app = create_app(open_requests, machine.submit, told, notes, text, health, lambda: b"# metrics\n", bounds=bounds)
    return Edge(app, machine, text, open_requests, notes, health, grammars)


def in_loop(test: Callable[..., object]) -> Callable[..., None]:
    """A test that is a coroutine runs in a loop of its own."""

    @functools.wraps(test)
    def run(*args: object, **named: object) -> None:
        asyncio.run(test(*args, **named))  # type: ignore[arg-type]

    return run


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self):
        yield


@contextlib.asynccontextmanager
async def serving(app: FastAPI):
    """The base URL of a real server in this loop. `app.state.lost` is set when a connection has been let go."""
    lost = app.state.lost = asyncio.Event()

    class Http(AbortableHttp):
        def connection_lost(self, exc):
            super().connection_lost(exc)
            lost.set()

    sock = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, http=Http, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=2
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        sock.close()
