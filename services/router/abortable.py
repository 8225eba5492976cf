"""HTTP whose connections are given back though a client takes no bytes: by the application, or by the kernel after a bound.

Use as uvicorn's `http`: the scope then has the extension `pdd.abort`, which drops the connection at once.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from .stream import ABORT

UNREAD_MS = 60_000  # for an answer that is written whole and not read


class AbortableHttp(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base
        super().connection_made(transport)
        self.app = _with_abort(cast(ASGIApp, self.app), transport.abort)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(
            socket, "TCP_USER_TIMEOUT"
        ):  # Linux; elsewhere such a socket waits for its client
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)


def _with_abort(app: ASGIApp, abort: Callable[[], None]) -> ASGIApp:
    async def abortable(scope: Scope, receive: Receive, send: Send) -> None:
        scope.setdefault("extensions", {})[ABORT] = abort
        await app(scope, receive, send)

    return abortable
