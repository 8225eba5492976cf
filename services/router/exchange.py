"""One HTTP request at the router machine: its submissions, what comes of them, and the word that nobody waits any more.

However it ends, each submission ends once: completed, rejected, stopped, or reported as gone.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from starlette.types import Receive

from pdd.core.effects import Complete, Deliver, Reject, RequestReport
from pdd.core.events import Event, RequestEnded, RequestSubmitted
from pdd.core.ids import RequestId
from pdd.core.sampling import Finish

from .choice import Choice, Piece
from .errors import ApiError
from .open_requests import Mailbox, OpenRequests, Said
from .settings import EdgeSettings

Submit = Callable[[Event], None]
BROKEN = "The answer does not fit the format that was asked for, through a fault of this server."


@dataclass(slots=True)
class Update:
    """What one choice gained since the last look."""

    choice: Choice
    piece: Piece = field(default_factory=Piece)


class Exchange:
    """`submissions[i]` is answered by `choices[i]`."""

    def __init__(
        self,
        open_requests: OpenRequests,
        submit: Submit,
        submissions: Sequence[RequestSubmitted],
        choices: Sequence[Choice],
        settings: EdgeSettings,
    ) -> None:
        self.choices = choices
        self._open_requests = open_requests
        self._submit = submit
        self._submissions = submissions
        self._by_request = {choice.request: choice for choice in choices}
        self._report_s = settings.report_s
        self._timers: list[asyncio.TimerHandle] = []
        self._running: dict[RequestId, None] = {}
        self.mailbox = Mailbox(settings.max_unread_tokens, self._gone)
        self.drop_connection: Callable[[], None] = lambda: None  # set where the server offers it

    @property
    def done(self) -> bool:
        return all(choice.finish for choice in self.choices)

    def start(self) -> None:
        for submission in self._submissions:
            self._running[submission.request] = None
            self._open_requests.open(submission.request, self.mailbox)
        for submission in self._submissions:
            self._submit(submission)

    async def updates(self, wait_s: float) -> list[Update]:
        """What came, one update a choice; empty when nothing did within `wait_s`. Raises ApiError or ClientGone."""
        by_request: dict[RequestId, Update] = {}
        for said in await self.mailbox.take(wait_s):
            choice = self._by_request[said.request]
            if choice.finish is None:
                update = by_request.setdefault(said.request, Update(choice))
                self._apply(said, update)
        return list(by_request.values())

    async def watch(self, receive: Receive) -> None:
        """Returns when the client has disconnected, with everything told."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self.mailbox.abandon()

    def end(self) -> None:
        """Idempotent. What still runs is reported as gone."""
        for timer in self._timers:
            timer.cancel()
        for request in list(self._running):
            self._open_requests.close(request)
            if not self._by_request[request].stopped:
                self._submit(RequestEnded(request, "gone"))
        self._running.clear()

    def _gone(self) -> None:
        self.end()
        self.drop_connection()

    def _apply(self, said: Said, update: Update) -> None:
        choice = update.choice
        match said:
            case Deliver(_, written, _):
                was_stopped = choice.stopped
                update.piece.add(choice.take(written))
                if choice.stopped and not was_stopped and written.finish is None:
                    self._stop(choice)
            case Complete(request, finish, report):
                update.piece.add(choice.end(finish, report))
                self._running.pop(request, None)
                if choice.broken:
                    raise ApiError(BROKEN, status=500, code="answer_unfit")
            case Reject(request) if choice.stopped:
                choice.end(Finish("stop"), RequestReport())
                self._running.pop(request, None)
            case Reject(request):
                self._running.pop(request, None)
                raise ApiError(said.message, status=said.status, code=said.code, retry_after_s=said.retry_after_s)

    def _stop(self, choice: Choice) -> None:
        """The machine answers with Complete, which carries the report. A machine that does not is not waited for long."""
        self._submit(RequestEnded(choice.request, "stop"))
        closing = Complete(choice.request, Finish("stop"), RequestReport())
        timer = asyncio.get_running_loop().call_later(self._report_s, self._open_requests.complete, closing)
        self._timers.append(timer)
