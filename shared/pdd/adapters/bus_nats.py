"""The bus over NATS core. Sending never waits and never raises: what cannot go out is counted, and the protocol repeats.

A broker that is not there yet, or goes away, is dialled for ever. Meanwhile the outbox keeps the newest messages up to a
bound in bytes. Per pair of peers order is kept, except over a reconnect, where messages may be lost.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import nats.errors
from nats.aio.client import Client

from ..core import codec, subjects
from ..core.effects import Count
from ..core.errors import FrameError
from ..core.events import Heard
from ..core.ids import Peer
from ..core.messages import Message
from ..ports import Notes, Sink
from .credentials import NO_CREDENTIALS, Credentials

DIAL_S = 2  # for one attempt
REDIAL_S = 0.5  # between attempts
PING_S = 2  # as the brokers', infra/nats: a dead connection is known after three
PINGS_OUTSTANDING = 2
LOOK_S = 1.0
GIVE_UP_S = 15.0  # without a connection: the client is replaced, in case it no longer tries
OUTBOX_BYTES = 8 << 20
HEADER_BYTES = 128  # what a trace header adds; the broker's limit counts it
MAX_PAYLOAD = 1 << 20  # until the broker says

log = logging.getLogger(__name__)


class NatsBus:
    """Create, `await connect()`, use from the loop's thread, `await close()`."""

    def __init__(
        self,
        me: Peer,
        servers: Sequence[str],
        sink: Sink,
        notes: Notes,
        *,
        listen_to: tuple[type[Message], ...] = (),
        credentials: Credentials = NO_CREDENTIALS,
    ) -> None:
        self._me = me
        self._servers = list(servers)
        self._tls, self._nkey_seed = credentials.tls(), credentials.nkey_seed
        self._sink, self._notes = sink, notes
        self._subjects = [subjects.inbox(me), *map(subjects.from_all, listen_to)]
        self._client: Any = None
        self._outbox: deque[tuple[str, bytes, dict[str, str] | None]] = deque()
        self._outbox_bytes = 0
        self._wake = asyncio.Event()
        self._up = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._last_error = ""

    async def connect(self, patience_s: float = 2.0) -> None:
        """Returns once connected, or after `patience_s`: then it goes on trying in the background."""
        self._keeper = asyncio.create_task(self._keep_connected())
        self._writer = asyncio.create_task(self._write())
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._up.wait()

    async def close(self, patience_s: float = 2.0) -> None:
        """What was sent has reached the broker, if it answers within `patience_s`."""
        await _end(self._writer)
        if self._client is not None and self._client.is_connected:
            with suppress(TimeoutError, OSError, nats.errors.Error):
                async with asyncio.timeout(patience_s):
                    await self._publish_outbox(self._client)
                    await self._client.flush(patience_s)
        await _end(self._keeper)

    @property
    def connected(self) -> bool:
        return self._client is not None and bool(self._client.is_connected)

    @property
    def max_message_bytes(self) -> int:
        limit = self._client.max_payload if self._client else MAX_PAYLOAD
        return int(limit) - HEADER_BYTES

    def send(self, to: Peer, message: Message, traceparent: str) -> None:
        try:
            subject = subjects.to_peer(to, message)
        except ValueError:  # a peer's name came over the bus: it must not end this process
            self._drop("bad_name", f"{type(message).__name__} to {to.name!r}")
            return
        headers = {"traceparent": traceparent} if traceparent else None
        self._post(subject, codec.encode_message(self._me, to, message), headers)

    def broadcast(self, message: Message) -> None:
        self._post(subjects.to_all(self._me, message), codec.encode_message(self._me, None, message), None)

    def _post(self, subject: str, frame: bytes, headers: dict[str, str] | None) -> None:
        if len(frame) > self.max_message_bytes:
            self._drop("too_large", f"{subject}: {len(frame)} bytes, the broker takes {self.max_message_bytes}")
            return
        self._outbox.append((subject, frame, headers))
        self._outbox_bytes += len(frame)
        while self._outbox_bytes > OUTBOX_BYTES:  # the newest say most: the rest is repeated anyway
            oldest, dropped, _ = self._outbox.popleft()
            self._outbox_bytes -= len(dropped)
            self._drop("outbox_full", oldest)
        self._wake.set()

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._client is not None:
                await self._publish_outbox(self._client)

    async def _publish_outbox(self, client: Any) -> None:
        while self._outbox and client.is_connected:
            subject, frame, headers = self._outbox.popleft()
            self._outbox_bytes -= len(frame)
            try:
                await client.publish(subject, frame, headers=headers)
            except Exception as error:  # whatever the client stumbles over, the next message is tried
                self._drop("not_published", f"{subject}: {error!r}")

    async def _hear(self, message: Any) -> None:
        try:
            envelope = codec.decode(message.data)
        except FrameError as error:
            self._drop("garbage", f"{message.subject}: {error}")
            return
        self._sink(Heard(envelope.sender, envelope.to, envelope.message))

    async def _keep_connected(self) -> None:
        while True:
            client = Client()
            try:
                await self._dial(client)
                self._client = client
                await self._on_up()
                await self._watch(client)
            except Exception as error:  # whatever the client stumbles over, another is tried
                await self._on_error(error)
            finally:
                self._client = None
                await _discard(client)
            await asyncio.sleep(REDIAL_S)

    async def _dial(self, client: Any) -> None:
        await client.connect(
            self._servers,
            name=str(self._me),
            error_cb=self._on_error,
            disconnected_cb=self._on_down,
            reconnected_cb=self._on_up,
            connect_timeout=DIAL_S,
            reconnect_time_wait=REDIAL_S,
            max_reconnect_attempts=-1,
            ping_interval=PING_S,
            max_outstanding_pings=PINGS_OUTSTANDING,
            flush_timeout=PING_S,
            no_echo=True,
            tls=self._tls,
            nkeys_seed_str=self._nkey_seed,
        )
        for subject in self._subjects:
            await client.subscribe(subject, cb=self._hear)
        await client.flush(DIAL_S)  # from here on nothing that is sent to us is missed

    async def _watch(self, client: Any) -> None:
        """Until this client has closed itself (the broker named an error) or has been without a connection for long."""
        without_s = 0.0
        while without_s < GIVE_UP_S and not client.is_closed:
            await asyncio.sleep(LOOK_S)
            without_s = 0.0 if client.is_connected else without_s + LOOK_S

    async def _on_up(self) -> None:
        self._last_error = ""
        log.info("bus: connected")
        self._up.set()
        self._wake.set()

    async def _on_down(self) -> None:
        log.warning("bus: connection lost")

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, nats.errors.SlowConsumerError):
            self._drop("slow_consumer", repr(error))
        elif not isinstance(error, (nats.errors.Error, OSError, TimeoutError)):
            log.error("bus: unexpected", exc_info=error)
        elif repr(error) != self._last_error:  # an outage is logged once, not at each attempt
            self._last_error = repr(error)
            log.warning("bus: %r", error)

    def _drop(self, reason: str, what: str) -> None:
        self._notes.note(Count("pdd_bus_dropped_total", (("reason", reason),)))
        log.warning("bus: dropped (%s) %s", reason, what)


async def _discard(client: Any) -> None:
    """Close within a bound. A connection that is gone already makes the client complain: nothing is lost by that."""
    with suppress(TimeoutError, OSError, nats.errors.Error):
        async with asyncio.timeout(DIAL_S):
            await client.close()


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
