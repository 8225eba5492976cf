"""One answer on its way to the client: streamed as server-sent events, or collected whole.

A stream's status line waits for the machine's first word, so that a refusal is a plain error with its status; after `keep_alive_s`
of silence it goes out as 200 with a comment. An error after that is one `data: {"error": ...}` event, and the stream ends without
`[DONE]`, which a client can tell from a whole answer. All that is delivered together leaves in one write.
"""

import asyncio
from collections.abc import Sequence

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from .answers import DONE, KEEP_ALIVE, Answers, Outcome, Usage
from .errors import ApiError, ClientGone
from .exchange import Exchange, Update
from .settings import EdgeSettings
from .translation import Wanted

ABORT = "pdd.abort"  # scope extension of services.router.abortable: drops a connection that takes no bytes


class EventStream(Response):
    """Writes itself. Whatever way it ends, the exchange has ended with it."""

    def __init__(
        self, exchange: Exchange, answers: Answers, wanted: Wanted, settings: EdgeSettings, *, with_report: bool
    ) -> None:
        super().__init__()
        self._exchange = exchange
        self._answers = answers
        self._wanted = wanted
        self._settings = settings
        self._with_report = with_report
        self._opened: set[int] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if abort := scope.get("extensions", {}).get(ABORT):
            self._exchange.drop_connection = abort
        self._exchange.start()
        watcher = asyncio.create_task(self._exchange.watch(receive))
        try:
            await self._run(send)
        except ClientGone:
            self._exchange.mailbox.abandon()
        finally:
            watcher.cancel()
            self._exchange.end()

    async def _run(self, send: Send) -> None:
        try:
            updates = await self._exchange.updates(self._settings.keep_alive_s)
        except ApiError as error:
            await error.send(lambda message: self._send(send, message))
            return
        await self._send(send, {"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        try:
            while not self._exchange.done:
                if body := self._render(updates):
                    await self._send(send, _body(body))
                updates = await self._exchange.updates(self._settings.keep_alive_s)
        except ApiError as error:
            await self._send(send, _body(b"data: %b\n\n" % error.body(), last=True))
            return
        await self._send(send, _body(self._render(updates) + self._ending(), last=True))

    def _render(self, updates: Sequence[Update]) -> bytes:
        """Empty where nothing is certain enough to be shown yet."""
        if not updates:
            return KEEP_ALIVE
        parts = []
        for update in updates:
            choice = update.choice
            if choice.index not in self._opened:
                self._opened.add(choice.index)
                parts.append(self._answers.opening(choice.index))
            if not update.piece.empty:
                parts.append(self._answers.piece(choice.index, update.piece))
            if choice.finish:
                report = choice.report if self._with_report else None
                parts.append(self._answers.closing(choice.index, choice.finish, report))
        return b"".join(parts)

    def _ending(self) -> bytes:
        if not self._wanted.with_usage:
            return DONE
        return self._answers.usage(usage_of(self._exchange, self._wanted)) + DONE

    async def _send(self, send: Send, message: Message) -> None:
        """Raises ClientGone where the client takes nothing for `stall_s`."""
        try:
            async with asyncio.timeout(self._settings.stall_s):
                await send(message)
        except (TimeoutError, OSError):
            raise ClientGone from None


EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not hold events back
]


def _body(body: bytes, *, last: bool = False) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": not last}


async def collect(exchange: Exchange, receive: Receive, settings: EdgeSettings, *, with_report: bool) -> list[Outcome]:
    """The whole answer. Raises ApiError or ClientGone; whatever way it ends, the exchange has ended with it."""
    outcomes = [Outcome(choice.index) for choice in exchange.choices]
    exchange.start()
    watcher = asyncio.create_task(exchange.watch(receive))
    try:
        while not exchange.done:
            for update in await exchange.updates(settings.keep_alive_s):
                outcomes[update.choice.index].piece.add(update.piece)
    finally:
        watcher.cancel()
        exchange.end()
    for choice, outcome in zip(exchange.choices, outcomes, strict=True):
        outcome.finish = choice.finish
        outcome.report = choice.report if with_report else None
    return outcomes


def usage_of(exchange: Exchange, wanted: Wanted) -> Usage:
    """A prompt counts once, however many choices it has; so does what prefill found of it, for its first choice."""
    first = exchange.choices[:: wanted.n]
    return Usage(
        prompt=wanted.prompt_tokens,
        completion=sum(choice.tokens for choice in exchange.choices),
        cached=sum(choice.report.hit.get("prefill", 0) for choice in first),
    )
