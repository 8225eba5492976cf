"""What a client is told when it cannot have what it asked for: one error, in OpenAI's shape, with HTTP's status."""

import orjson
from starlette.types import Send

TYPE_BY_STATUS = {429: "rate_limit_error", 500: "server_error", 503: "server_error", 504: "server_error"}


class ApiError(Exception):
    """`param` names the field at fault; `message` says its limit."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def type(self) -> str:
        return TYPE_BY_STATUS.get(self.status, "invalid_request_error")

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return orjson.dumps({"error": error})

    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds, at least one, where waiting helps."""
        if self.status == 401:
            return {"www-authenticate": "Bearer"}
        if self.retry_after_s is None:
            return {}
        return {"retry-after": str(max(1, round(self.retry_after_s)))}

    async def send(self, send: Send) -> None:
        """As a whole answer, where there is no framework to do it."""
        headers = [(b"content-type", b"application/json")]
        headers += [(name.encode(), value.encode()) for name, value in self.headers().items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body()})


class ClientGone(Exception):
    """Nobody reads the answer any more: disconnected, or too slow for too long."""


def invalid(param: str, message: str) -> ApiError:
    return ApiError(f"{param}: {message}", param=param, code="invalid_value")


def context_exceeded(param: str, max_context: int, message: str) -> ApiError:
    return ApiError(
        f"This model's maximum context length is {max_context} tokens. {message}",
        param=param,
        code="context_length_exceeded",
    )
