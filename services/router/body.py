"""A request's body, read whole within its limits of size and time."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from .errors import ApiError, ClientGone
from .settings import EdgeSettings


async def read_body(request: Request, settings: EdgeSettings) -> bytes:
    """Raises ApiError (413 naming the limit, 408) or ClientGone. A length that is announced is refused unread."""
    limit = settings.max_body_bytes
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_s):
            async for part in request.stream():
                body += part
                if len(body) > limit:
                    raise _too_large(limit)
    except TimeoutError:
        raise ApiError(f"The body did not arrive within {settings.body_s:g} s.", status=408, code="timeout") from None
    except ClientDisconnect:
        raise ClientGone from None
    return bytes(body)


def _too_large(limit: int) -> ApiError:
    return ApiError(f"The body may have at most {limit} bytes.", status=413, code="body_too_large")
