"""The line's control port, both sides: HTTP with JSON, on the loopback. GET / shows the line, POST / changes it.

curl localhost:PORT            curl localhost:PORT -d '{"rate_mbit": 5, "delay_ms": 40}'            ... -d '{"stall": true}'
"""

import asyncio
import contextlib
import http.client

import msgspec

from .line import Line
from .state import Change, LineState

REQUEST_BYTES = 8 << 10
REQUEST_S = 5.0
CLIENT_S = 5.0


class LineError(Exception):
    """The control port does not answer, or refuses a change; the message says why."""


def read_line(control: str) -> LineState:
    """`control`: host:port. Raises LineError."""
    return _ask(control, "GET", b"")


def change_line(control: str, change: Change) -> LineState:
    """The state after the change. Raises LineError."""
    return _ask(control, "POST", msgspec.json.encode(change))


def _ask(control: str, method: str, body: bytes) -> LineState:
    host, _, port = control.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=CLIENT_S)
    try:
        connection.request(method, "/", body or None)
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise LineError(f"no line answers on {control}: {error}") from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise LineError(content.decode(errors="replace").strip())
    return msgspec.json.decode(content, type=LineState)


# -- the line's side --------------------------------------------------------------------------------------------------


async def serve_control(line: Line, host: str, port: int) -> asyncio.Server:
    """One request for each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_S):
                status, body = await _answer(line, reader)
                head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
                writer.write(f"{head}connection: close\r\n\r\n".encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked has left
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    return await asyncio.start_server(serve, host, port, limit=REQUEST_BYTES)


async def _answer(line: Line, reader: asyncio.StreamReader) -> tuple[str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method = head[0].partition(" ")[0]
    try:
        if method == "POST":
            await line.change(msgspec.json.decode(await reader.readexactly(_length(head)), type=Change))
        elif method != "GET":
            return "405 Method Not Allowed", b'{"error": "GET shows the line, POST changes it"}\n'
    except (msgspec.MsgspecError, ValueError, OSError) as error:
        return "400 Bad Request", msgspec.json.encode({"error": str(error)}) + b"\n"
    return "200 OK", msgspec.json.encode(line.state) + b"\n"


def _length(head: list[str]) -> int:
    lengths = [value for name, _, value in (line.partition(":") for line in head) if name.lower() == "content-length"]
    length = int(lengths[0]) if lengths else 0
    if not 0 < length <= REQUEST_BYTES:
        raise ValueError(f"a change is a JSON object of at most {REQUEST_BYTES} bytes")
    return length
