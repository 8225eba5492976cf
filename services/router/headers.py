"""Names and wishes that travel in a request's headers: its id, its trace, and the hooks of tests and the demo."""

import re
import secrets
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pdd.core.ids import RequestId

from .errors import ApiError, invalid
from .settings import EdgeSettings

ROUTES = ("P-MD", "P-RLD-MD", "MD", "P-RLD", "RLD")
MAX_HANDOVER_AFTER = 1 << 20

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TRACEPARENT = re.compile(r"00-(?!0{32})(?P<trace>[0-9a-f]{32})-(?P<span>(?!0{16})[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})")


@dataclass(frozen=True, slots=True)
class Hooks:
    report: bool = False
    handover_after: int = 0
    route: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a request's spans belong. `parent`: the client's own span in it, or ""."""

    trace_id: str
    parent: str
    flags: str

    def root(self) -> str:
        """A traceparent with the id of a new span: each choice is a request of its own, and has a root of its own."""
        return f"00-{self.trace_id}-{secrets.token_hex(8)}-{self.flags}"


class RequestIds:
    """Every answer carries `x-request-id`: the client's own if it is sane, else one made here (`scope["state"]`)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        sane = _SANE_ID.fullmatch(given) is not None
        name = given if sane else secrets.token_hex(16)
        # A client may repeat its id; the fleet's names must differ for as long as anything remembers them.
        internal = f"{name}-{secrets.token_hex(6)}" if sane else name
        scope.setdefault("state", {}).update(request_id=name, internal_id=internal)

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = name
            await send(message)

        await self._app(scope, receive, named)


def choice_request(internal: str, index: int, count: int) -> RequestId:
    """Each choice is a request of its own to the fleet."""
    return RequestId(internal if count == 1 else f"{internal}-{index}")


def trace_of(headers: Headers) -> Trace:
    """The client's if it sent one, else a new one."""
    given = _TRACEPARENT.fullmatch(headers.get("traceparent", ""))
    return Trace(given["trace"], given["span"], given["flags"]) if given else Trace(secrets.token_hex(16), "", "01")


def hooks_of(headers: Headers, settings: EdgeSettings) -> Hooks:
    """Raises ApiError (400) for a test hook that is not enabled, or a value it cannot have."""
    after, route = headers.get("x-pdd-handover-after"), headers.get("x-pdd-route")
    for name, value in (("x-pdd-handover-after", after), ("x-pdd-route", route)):
        if value is not None and not settings.test_hooks:
            raise ApiError(f"{name}: test hooks are not enabled here", param=name, code="unsupported_parameter")
    if route is not None and route not in ROUTES:
        raise invalid("x-pdd-route", f"must be one of {', '.join(ROUTES)}")
    return Hooks(settings.report and headers.get("x-pdd-report") == "1", _handover_after(after), route or "")


def _handover_after(value: str | None) -> int:
    if value is None:
        return 0
    if not (value.isascii() and value.isdigit() and len(value) <= 7 and 1 <= int(value) <= MAX_HANDOVER_AFTER):
        raise invalid("x-pdd-handover-after", f"must be a whole number from 1 to {MAX_HANDOVER_AFTER}")
    return int(value)
