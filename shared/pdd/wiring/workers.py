"""P, RLD or MD: an engine, a link for KV, and the role between them."""

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from ..adapters.engine_steps import SteppingEngine
from ..adapters.kv_codecs import codecs
from ..adapters.kv_nixl import NixlCarrier, installed
from ..adapters.kv_tcp import TcpKvLink
from ..adapters.kv_tcp_socket import TcpOptions
from ..adapters.kv_tcp_tls import TlsFiles
from ..core.errors import PddError
from ..core.ids import Role
from ..core.messages import WorkerCard
from ..core.roles.main_decode import MainDecode
from ..core.roles.prefill import Prefill
from ..core.roles.receiver import context_limit
from ..core.roles.relay_decode import RelayDecode
from ..core.roles.worker import Worker
from ..ports import Ports
from ..runtime.health import Health, worker_app
from ..runtime.lifecycle import listen, run_service
from ..runtime.settings import WorkerSettings
from .engines import ENGINES
from .process import Process, Running

WORKERS: dict[Role, type[Worker[Any]]] = {Role.PREFILL: Prefill, Role.RELAY: RelayDecode, Role.MAIN: MainDecode}


async def serve_worker(role: Role, settings: WorkerSettings) -> int:
    """P, RLD or MD, until a signal; the exit status."""
    sock = listen(settings.http_host, settings.http_port)
    process = Process(role, settings, sock)
    health = Health(role)
    app = worker_app(health, process.notes.render, process.notes.spans_of)
    return await run_service(app, health, sock, open_worker(process, settings), settings.drain_s)


@asynccontextmanager
async def open_worker(process: Process, settings: WorkerSettings) -> AsyncIterator[Running[Worker[Any]]]:
    async with AsyncExitStack() as opened:
        opened.callback(process.notes.close)
        engine = await asyncio.to_thread(ENGINES[settings.engine], process, settings)
        carrier = _open_carrier(process, settings)
        opened.callback(carrier.close if carrier else lambda: None)
        kv = _open_kv(process, settings, engine, carrier)
        opened.push_async_callback(asyncio.to_thread, kv.close)
        card = WorkerCard(
            fingerprint=engine.fingerprint,
            max_context=context_limit(
                process.me.role, engine.limits.context, settings.staging_bytes, engine.kv_shape.bytes_per_token
            ),
            max_sequences=engine.limits.max_sequences,
            bytes_per_token=engine.kv_shape.bytes_per_token,
            kv_address=kv.address,
            features=engine.features,
        )
        machine: Worker[Any] = WORKERS[process.me.role](process.me, card, settings.timeouts, secrets.token_bytes(32))
        running = process.drive(machine)
        running.driver.ports = Ports(running.bus, process.notes, engine=engine, kv=kv)
        opened.push_async_callback(running.bus.close)
        await running.bus.connect()
        yield running


def _open_carrier(process: Process, settings: WorkerSettings) -> NixlCarrier | None:
    """Of who sends and receives within a site."""
    if settings.line.near != "nixl" or process.me.role is Role.MAIN:
        return None
    if not installed():
        raise PddError("PDD_LINE__NEAR is nixl, and NIXL is not installed: pip install --no-deps nixl nixl-cu12")
    return NixlCarrier()


def _open_kv(
    process: Process, settings: WorkerSettings, engine: SteppingEngine, carrier: NixlCarrier | None
) -> TcpKvLink:
    kv = TcpKvLink(
        process.me,
        listen=(settings.kv_host, settings.kv_port),
        fingerprint=engine.fingerprint,
        source=engine,
        sink=process.post,
        notes=process.notes,
        clock=process.clock,
        staging_bytes=settings.staging_bytes,
        advertise=settings.kv_address or _own_address(settings),
        options=TcpOptions.of(settings.line),
        tls=_kv_tls(process, settings),
        codecs=codecs() if settings.line.packed else {},
        carrier=carrier,
        owned=settings.line.leased,
    )
    try:
        kv.start()
    except OSError as error:
        at = f"{settings.kv_host}:{settings.kv_port}"
        raise PddError(f"cannot take KV on {at}: {error.strerror or error}; set PDD_KV_PORT to a free port") from None
    return kv


def _kv_tls(process: Process, settings: WorkerSettings) -> TlsFiles | None:
    """Of who sends to another site, and who receives from one. RLD stands next to P."""
    files = process.credentials.certificate() if settings.kv_tls else None
    return TlsFiles(*files) if files and process.me.role is not Role.RELAY else None


def _own_address(settings: WorkerSettings) -> str | None:
    """Who listens everywhere is reached by its host's name: in a container network that is the container's own."""
    everywhere = settings.kv_host in ("0.0.0.0", "::") and settings.kv_port
    return f"{socket.gethostname()}:{settings.kv_port}" if everywhere else None
