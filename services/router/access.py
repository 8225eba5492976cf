"""Who may ask, and how much at once: API keys, and a bound of running requests for each. Without keys everybody may.

Keys are compared by their digests. What says how the server is (/health, /ready, /metrics, /version, ...) asks for no key.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from pdd.core.effects import Count
from pdd.core.errors import SettingsError
from pdd.ports import Notes

from .errors import ApiError

GUARDED = ("/v1/", "/tokenize", "/detokenize")
RETRY_S = 1.0

Keys = Mapping[bytes, int]  # digest -> requests at once, 0: no limit


class Access:
    def __init__(self, app: ASGIApp, keys: Keys, notes: Notes) -> None:
        self._app = app
        self._keys = keys
        self._notes = notes
        self._running: Counter[bytes] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._keys or not scope["path"].startswith(GUARDED):
            await self._app(scope, receive, send)
            return
        try:
            key = self._admitted(Headers(scope=scope))
        except ApiError as error:
            self._notes.note(Count("pdd_requests_refused_total", (("reason", error.code or ""),)))
            await error.send(send)
            return
        self._running[key] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]

    def _admitted(self, headers: Headers) -> bytes:
        """Raises ApiError (401, 429)."""
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = digest(given.strip())
        limit = self._keys.get(key)
        if scheme.lower() != "bearer" or limit is None:
            text = "Incorrect API key provided." if given else "You did not send an API key: Authorization: Bearer ..."
            raise ApiError(text, status=401, code="invalid_api_key")
        if limit and self._running[key] >= limit:
            text = f"This key may have at most {limit} requests at once."
            raise ApiError(text, status=429, code="rate_limit_exceeded", retry_after_s=RETRY_S)
        return key


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def read_keys(listed: str, file: Path | None, limit: int) -> dict[bytes, int]:
    """`listed`: separated by commas; `file`: one a line, with a limit of its own behind it where it has one. Raises SettingsError."""
    keys = {digest(key.strip()): limit for key in listed.split(",") if key.strip()}
    for number, line in enumerate(_lines(file), start=1):
        match line.partition("#")[0].split():
            case []:
                continue
            case [key]:
                keys[digest(key)] = limit
            case [key, own] if own.isdigit():
                keys[digest(key)] = int(own)
            case _:
                raise SettingsError(f"{file}, line {number}: a key, and perhaps a number of requests at once")
    if file is not None and not keys:
        raise SettingsError(f"{file}: holds no key")
    return keys


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: {error}") from error
