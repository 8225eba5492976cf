"""One service process from start to end: live at once, ready when wired, drained on the first SIGTERM or SIGINT within
a bound, stopped at once on the second. A machine that raises ends its process, with its story in the log.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol, TypeVar

import uvicorn

from ..core.errors import IllegalEvent, PddError, SettingsError
from ..core.events import DrainWanted
from .driver import LiveDriver
from .health import Health, Stage
from .settings import ServiceSettings, read_settings

HTTP_CLOSE_S = 3  # for answers still being written when the process stops
DRAIN_LOOK_S = 0.05

log = logging.getLogger("pdd")


class Running(Protocol):
    """A wired role: its adapters are connected and its machine waits to be driven."""

    @property
    def driver(self) -> LiveDriver: ...

    def drained(self) -> bool:
        """Nothing runs here any more for anybody."""

    def connected(self) -> bool:
        """The site's broker is there."""


K = TypeVar("K", bound=ServiceSettings)


def run_main(kind: type[K], service: str, serve: Callable[[K], Coroutine[Any, Any, int]]) -> int:
    """A service's whole `__main__`. Returns the exit status: 0 stopped when asked, 1 failed, 2 wrong settings."""
    try:
        settings = read_settings(kind)
    except SettingsError as error:
        print(f"{service}: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(
        level=settings.log_level.upper(),
        format=f"%(asctime)s %(levelname)s {settings.name or service}@{settings.site} %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        return asyncio.run(serve(settings))
    except IllegalEvent:
        log.exception("the machine refused an event of its own process")
    except PddError as error:
        log.error("%s", error)
    return 1


async def run_service(
    app: Callable[..., Any],
    health: Health,
    sock: socket.socket,
    service: AbstractAsyncContextManager[Running],
    drain_s: float,
    http: type[asyncio.Protocol] | Literal["auto"] = "auto",
) -> int:
    """Serve `app` at once, and the role inside `service` when it is wired. Raises what the machine or an adapter raised."""
    asked = _Asked()
    with asked.listening(), _failing_callbacks() as failed:
        async with _http(app, sock, http):
            main = asyncio.create_task(_serve(health, service, asked, drain_s))
            first = asyncio.ensure_future(asked.once.wait())
            ends: set[asyncio.Future[Any]] = {main, failed}
            try:
                await asyncio.wait(ends | {first}, return_when=asyncio.FIRST_COMPLETED)
                if health.stage is not Stage.STARTING:
                    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _cancel(main, first)
                health.stage = Stage.STOPPED
            if failed.done():
                failed.result()
            if not main.cancelled():
                main.result()
    return 0


def listen(host: str, port: int) -> socket.socket:
    """Raises PddError saying what to do when the port is taken."""
    try:
        return socket.create_server((host, port), backlog=256)
    except OSError as error:
        reason = error.strerror or error
        raise PddError(f"cannot listen on {host}:{port}: {reason}; set PDD_HTTP_PORT to a free port") from None


class _Asked:
    """How often this process was asked to end."""

    def __init__(self) -> None:
        self.once = asyncio.Event()
        self.twice = asyncio.Event()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._heard)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _heard(self) -> None:
        (self.twice if self.once.is_set() else self.once).set()


@contextlib.contextmanager
def _failing_callbacks() -> Iterator["asyncio.Future[None]"]:
    """Raises what a callback on the loop raised: a worker whose engine cannot compute must not look alive."""
    loop = asyncio.get_running_loop()
    failed = loop.create_future()

    def heard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if "handle" in context and isinstance(error, Exception) and not failed.done():
            failed.set_exception(error)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(heard)
    try:
        yield failed
    finally:
        loop.set_exception_handler(None)
        failed.cancel()


async def _serve(health: Health, service: AbstractAsyncContextManager[Running], asked: _Asked, drain_s: float) -> None:
    async with service as running:
        driving = asyncio.create_task(running.driver.run())
        ending = asyncio.create_task(asked.once.wait())
        try:
            health.stage, health.connected = Stage.READY, running.connected
            health.idle, health.drain = running.drained, lambda: _begin_drain(health, running)
            log.info("ready")
            await asyncio.wait({driving, ending}, return_when=asyncio.FIRST_COMPLETED)
            if not driving.done():
                log.info("draining, for at most %.0f s", drain_s)
                _begin_drain(health, running)
                await _drain(running, driving, asked, drain_s)
            if driving.done():
                driving.result()
        finally:
            await _cancel(driving, ending)
    log.info("stopped")


def _begin_drain(health: Health, running: Running) -> None:
    health.stage = Stage.DRAINING
    running.driver.post(DrainWanted())


async def _drain(running: Running, driving: asyncio.Task[None], asked: _Asked, drain_s: float) -> None:
    """Until nothing runs here, the driver ends, a second signal comes, or `drain_s` has passed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(drain_s):
            await asyncio.sleep(DRAIN_LOOK_S)  # the machine must hear DrainWanted before `drained` means anything
            while not (running.drained() or driving.done() or asked.twice.is_set()):
                await asyncio.sleep(DRAIN_LOOK_S)


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Returns when all have ended. What they raised stays with them."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


class _Server(uvicorn.Server):
    """Uvicorn without its own signal handlers: ending is the lifecycle's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def _http(
    app: Callable[..., Any], sock: socket.socket, http: type[asyncio.Protocol] | Literal["auto"]
) -> AsyncIterator[None]:
    config = uvicorn.Config(
        app, http=http, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=HTTP_CLOSE_S
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield
    finally:
        server.should_exit = True
        await serving
