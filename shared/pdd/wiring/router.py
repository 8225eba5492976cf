"""The router, made before it is opened: the HTTP edge that posts to it is built in between."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from ..adapters.model_files import fingerprint
from ..core.messages import Beat
from ..core.roles.router import Router
from ..ports import Ports, Text
from ..runtime.settings import RouterSettings
from .process import Process, Running


def make_router(process: Process, settings: RouterSettings) -> Running[Router]:
    """Takes events from now on; they are handled once `open_router` has given it its ports."""
    machine = Router(
        process.me,
        fingerprint(settings.model_dir),
        settings.timeouts,
        settings.routing,
        max_inflight=settings.max_requests,
        policy=settings.policy,
        relay_bound=settings.relay_bound,
        singular=settings.singular,
    )
    return process.drive(machine, Beat)


@asynccontextmanager
async def open_router(process: Process, router: Running[Router], text: Text) -> AsyncIterator[Running[Router]]:
    async with AsyncExitStack() as opened:
        opened.callback(process.notes.close)
        router.driver.ports = Ports(router.bus, process.notes, text=text)
        opened.push_async_callback(router.bus.close)
        await router.bus.connect()
        yield router
