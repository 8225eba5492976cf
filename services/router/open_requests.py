"""The router's `Text` port: what the machine says to clients finds the HTTP request that waits for it.

All of it runs on the event loop's thread. An effect for a request that nobody waits for any more is dropped: the client has left.
"""

import asyncio
from collections.abc import Callable

from pdd.core.effects import Complete, Deliver, Reject
from pdd.core.ids import RequestId

from .errors import ClientGone

Said = Deliver | Complete | Reject


class Mailbox:
    """What the machine said to one HTTP request, until it is taken. One reader.

    Bounded: a reader who is more than `max_unread_tokens` behind is taken for gone.
    """

    def __init__(self, max_unread_tokens: int, on_gone: Callable[[], None]) -> None:
        self._said: list[Said] = []
        self._unread_tokens = 0
        self._max_unread_tokens = max_unread_tokens
        self._on_gone = on_gone
        self._reader: asyncio.Future[None] | None = None
        self.gone = False

    def put(self, said: Said) -> None:
        if self.gone:
            return
        self._said.append(said)
        if isinstance(said, Deliver):
            self._unread_tokens += len(said.written.ids)
            if self._unread_tokens > self._max_unread_tokens:
                self.abandon()
                return
        self._wake()

    def abandon(self) -> None:
        """Nobody will read this any more. Told at once, whatever the reader is doing."""
        if not self.gone:
            self.gone = True
            self._said.clear()
            self._wake()
            self._on_gone()

    async def take(self, wait_s: float) -> list[Said]:
        """Everything said since the last call; empty when nothing came within `wait_s`. Raises ClientGone."""
        if not self._said and not self.gone:
            await self._wait(wait_s)
        if self.gone:
            raise ClientGone
        said, self._said = self._said, []
        self._unread_tokens = 0
        return said

    async def _wait(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._reader = loop.create_future()
        timer = loop.call_later(wait_s, self._wake)
        try:
            await self._reader
        finally:
            timer.cancel()
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class OpenRequests:
    """Satisfies `pdd.ports.Text`."""

    def __init__(self) -> None:
        self._mailboxes: dict[RequestId, Mailbox] = {}

    def __len__(self) -> int:
        return len(self._mailboxes)

    def open(self, request: RequestId, mailbox: Mailbox) -> None:
        self._mailboxes[request] = mailbox

    def close(self, request: RequestId) -> bool:
        """Whether it was open."""
        return self._mailboxes.pop(request, None) is not None

    def deliver(self, effect: Deliver) -> None:
        mailbox = self._mailboxes.get(effect.request)
        if mailbox is not None:
            mailbox.put(effect)

    def complete(self, effect: Complete) -> None:
        mailbox = self._mailboxes.pop(effect.request, None)
        if mailbox is not None:
            mailbox.put(effect)

    def reject(self, effect: Reject) -> None:
        mailbox = self._mailboxes.pop(effect.request, None)
        if mailbox is not None:
            mailbox.put(effect)
