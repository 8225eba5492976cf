"""The prefix index: its store, and a bus that hears beats and changes of caches."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from ..adapters.prefix_redis import RedisPrefixStore
from ..core.ids import Role
from ..core.messages import Beat, BlocksChanged
from ..core.roles.prefix_index import PrefixIndex
from ..ports import Ports
from ..runtime.health import Health, worker_app
from ..runtime.lifecycle import listen, run_service
from ..runtime.settings import IndexSettings
from .process import Process, Running


async def serve_index(settings: IndexSettings) -> int:
    """Until a signal; the exit status."""
    sock = listen(settings.http_host, settings.http_port)
    process = Process(Role.INDEX, settings, sock)
    health = Health(Role.INDEX)
    app = worker_app(health, process.notes.render, process.notes.spans_of)
    return await run_service(app, health, sock, _open_index(process, settings), settings.drain_s)


@asynccontextmanager
async def _open_index(process: Process, settings: IndexSettings) -> AsyncIterator[Running[PrefixIndex]]:
    async with AsyncExitStack() as opened:
        opened.callback(process.notes.close)
        store = RedisPrefixStore(
            settings.redis_url,
            settings.redis_namespace,
            process.post,
            process.notes,
            password=process.credentials.redis_password,
        )
        running = process.drive(PrefixIndex(process.me, settings.timeouts), Beat, BlocksChanged)
        running.driver.ports = Ports(running.bus, process.notes, store=store)
        opened.push_async_callback(store.close)
        await store.connect()
        opened.push_async_callback(running.bus.close)
        await running.bus.connect()
        yield running
