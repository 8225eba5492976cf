"""What a client is told where a request ends in an error: OpenAI's shape, whatever it was, and nothing of the inside."""

from collections.abc import Awaitable, Callable, Mapping

from fastapi import Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from .errors import ApiError, ClientGone

CLIENT_CLOSED = 499  # as nginx counts it; nobody reads this answer


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _told(error)


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: {error.detail}"
    return _told(ApiError(text, status=error.status_code, code="not_found"), error.headers)


async def _too_deep(request: Request, error: Exception) -> Response:
    """Nothing but a body nests without end here: what reads it goes one call deeper for each of its levels."""
    return _told(ApiError("The body is nested too deeply.", code="invalid_json"))


async def _nobody_reads(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED)


async def _failed(request: Request, error: Exception) -> Response:
    """The story is logged by the server."""
    return _told(ApiError("The server failed to handle this request.", status=500, code="internal_error"))


ANSWERS: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
    ApiError: _refuse,
    HTTPException: _refuse_path,
    RecursionError: _too_deep,
    ClientGone: _nobody_reads,
    Exception: _failed,
}


def _told(error: ApiError, headers: Mapping[str, str] | None = None) -> Response:
    return Response(error.body(), error.status, {**error.headers(), **(headers or {})}, media_type="application/json")
