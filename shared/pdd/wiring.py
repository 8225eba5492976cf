"""Settings -> adapters -> ports -> machine -> driver: the only module that knows every adapter.

Each `open_*` connects one role's adapters, gives out what runs, and closes them in reverse order, whatever happens inside.
"""

import asyncio
import json
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .adapters.bus_nats import NatsBus
from .adapters.credentials import Credentials
from .adapters.engine_steps import SteppingEngine
from .adapters.kv_codecs import codecs
from .adapters.kv_nixl import NixlCarrier, installed
from .adapters.kv_tcp import TcpKvLink
from .adapters.kv_tcp_socket import TcpOptions
from .adapters.kv_tcp_tls import TlsFiles
from .adapters.model_files import fingerprint
from .adapters.notes_otel import OtelNotes
from .adapters.prefix_redis import RedisPrefixStore
from .core.cost import COSTS
from .core.errors import PddError
from .core.events import Event
from .core.ids import Peer, Role
from .core.messages import Beat, BlocksChanged, Message, WorkerCard
from .core.roles.main_decode import MainDecode
from .core.roles.prefill import Prefill
from .core.roles.prefix_index import PrefixIndex
from .core.roles.receiver import context_limit
from .core.roles.relay_decode import RelayDecode
from .core.roles.router import Router
from .core.roles.worker import Worker
from .ports import KvShape, Ports, Text
from .runtime.driver import LiveDriver, LoopClock
from .runtime.health import Health, worker_app
from .runtime.lifecycle import listen, run_service
from .runtime.settings import IndexSettings, RouterSettings, ServiceSettings, WorkerSettings

M = TypeVar("M", Worker[Any], Router, PrefixIndex)

WORKERS: dict[Role, type[Worker[Any]]] = {Role.PREFILL: Prefill, Role.RELAY: RelayDecode, Role.MAIN: MainDecode}


class Process:
    """What a service has before its machine: a name, a clock, notes. Inside the loop that will drive it."""

    def __init__(self, role: Role, settings: ServiceSettings, http: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        self.clock = LoopClock(self.loop)
        self.settings = settings
        name = settings.name or _default_name(role, http.getsockname()[1])
        self.me = Peer(settings.site, role, name, incarnation=time.time_ns() // 1_000_000)
        self.credentials = Credentials(settings.credentials_dir)
        otlp = settings.otlp_endpoint or None
        self.notes = OtelNotes(
            f"pdd-{role}", str(self.me), otlp, self.clock, credentials=self.credentials, model=_model_of(settings)
        )
        self._driver: LiveDriver | None = None

    def post(self, event: Event) -> None:
        """The sink of this process's adapters, from any thread."""
        assert self._driver is not None, "an adapter spoke before there was a machine"
        self._driver.post(event)

    def on_loop(self, action: Callable[[], None]) -> None:
        """From any thread. What the action raises ends the process."""
        self.loop.call_soon_threadsafe(action)

    def drive(self, machine: M, *listen_to: type[Message]) -> "Running[M]":
        """With a bus that hears what is sent to us, and broadcasts of these kinds."""
        self._driver = LiveDriver(machine, self.clock)
        servers = [self.settings.nats_url]
        bus = NatsBus(self.me, servers, self.post, self.notes, listen_to=listen_to, credentials=self.credentials)
        return Running(machine, self._driver, bus)


@dataclass(frozen=True)
class Running(Generic[M]):
    """One role with its driver. Satisfies runtime.lifecycle.Running."""

    machine: M
    driver: LiveDriver
    bus: NatsBus

    def drained(self) -> bool:
        return self.machine.idle

    def connected(self) -> bool:
        return self.bus.connected


# -- workers ----------------------------------------------------------------------------------------------------------


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


# -- engines ----------------------------------------------------------------------------------------------------------


def _torch_engine(process: Process, settings: WorkerSettings) -> SteppingEngine:
    from .adapters.engine_torch import create_torch  # here alone: router and index run where there is no torch

    return create_torch(
        settings.model_dir,
        fingerprint=fingerprint(settings.model_dir),
        sink=process.post,
        clock=process.clock,
        post=process.on_loop,
        dtype=settings.dtype,
        device=settings.device,
        page_size=settings.page_tokens,
        pages=0 if settings.memory_bytes else settings.pages,
        memory_bytes=settings.memory_bytes,
        max_sequences=settings.max_sequences,
        max_context=settings.max_context,
        chunk_tokens=settings.chunk_tokens,
        threads=settings.threads,
    )


def _scripted_engine(process: Process, settings: WorkerSettings) -> SteppingEngine:
    """Takes vocabulary, end token and KV shape from the model's folder, and no weights."""
    from .adapters.engine_scripted import Script, create_scripted

    config = json.loads((settings.model_dir / "config.json").read_text())
    script = Script(vocab=config["vocab_size"], end_token=config["eos_token_id"])
    return create_scripted(
        pages=settings.pages,
        page_size=settings.page_tokens,
        max_sequences=settings.max_sequences,
        max_context=settings.max_context or config["max_position_embeddings"],
        sink=process.post,
        clock=process.clock,
        cost=COSTS[settings.scripted_cost],
        chunk_tokens=settings.chunk_tokens,
        fingerprint=fingerprint(settings.model_dir),
        kv_shape=_shape(config, settings.dtype),
        script=script,
    )


def _shape(config: dict[str, Any], dtype: str) -> KvShape:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    return KvShape(config["num_hidden_layers"], config.get("num_key_value_heads") or heads, head_dim, dtype)


ENGINES: dict[str, Callable[[Process, WorkerSettings], SteppingEngine]] = {
    "torch": _torch_engine,
    "scripted": _scripted_engine,
}


# -- prefix index and router ------------------------------------------------------------------------------------------


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


def _model_of(settings: ServiceSettings) -> str:
    """As its metrics name it."""
    match settings:
        case RouterSettings(model_name=name) if name:
            return name
        case RouterSettings() | WorkerSettings():
            return settings.model_dir.resolve().name
        case _:
            return ""


def _default_name(role: Role, port: int) -> str:
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())
    return f"{role}-{host}-{port}"[:64]
