"""The deployed brokers' configuration, with real brokers and the credentials of `make certs`: who may join, and hear what."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import nats
import nats.errors
import pytest
from nats.aio.client import Client

from infra.certs.make import make as make_credentials
from infra.certs.make import nkey_of, nkey_seed
from pdd.adapters.bus_nats import NatsBus
from pdd.adapters.credentials import Credentials
from pdd.adapters.local_servers import LocalServer, Login, ServerCommand, free_port, nats_hub
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.events import Event, Heard
from pdd.core.ids import Epoch, Peer, RequestId, Role
from pdd.core.messages import Beat, EngineLoad, Released, WorkerCard

CONFIG = Path(__file__).resolve().parents[2] / "infra" / "nats"
WAIT_S = 5.0
ROUTER = Peer("a", Role.ROUTER, "router-1", 1)
MAIN = Peer("b", Role.MAIN, "main-1", 1)
BEAT = Beat(1, WorkerCard("f", 4096, 8, 256), (), EngineLoad())


@dataclass(frozen=True)
class Broker:
    """One site's: the deployed configuration, on ports of this test and on 127.0.0.1 alone."""

    server: LocalServer
    credentials: Credentials
    leaf_port: int

    @property
    def url(self) -> str:
        return f"tls://127.0.0.1:{self.server.command.port}"

    @property
    def log(self) -> str:
        return self.server.log.read_text()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs")
    make_credentials(folder, [], [])
    return folder


@contextmanager
def broker(site: str, credentials: Path, folder: Path, hub: int = 0) -> Iterator[Broker]:
    folder.mkdir()
    shutil.copytree(credentials, folder / "credentials")
    port, leaf, monitor = free_port(), free_port(), free_port()
    config = (CONFIG / f"deployed_{site}.conf").read_text().replace("8222", str(monitor))
    (folder / "site.conf").write_text(
        config.replace("0.0.0.0:4222", f"127.0.0.1:{port}").replace("0.0.0.0:7422", f"127.0.0.1:{leaf}")
    )
    program = nats_hub("", port, leaf, Login(), Login()).argv[0]
    argv = ("env", f"--chdir={folder}", program, "-c", "site.conf")
    env = {"NATS_HUB": f"tls://127.0.0.1:{hub}", "PATH": "/usr/bin:/bin"}
    command = ServerCommand(f"nats-{site}", argv, env, port, "")
    with LocalServer(command, folder / "log") as server:
        yield Broker(server, Credentials(folder / "credentials"), leaf)


@pytest.fixture(scope="module")
def brokers(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Broker]]:
    folder = tmp_path_factory.mktemp("brokers")
    with (
        broker("a", made / "site-a", folder / "a") as hub,
        broker("b", made / "site-b", folder / "b", hub.leaf_port) as leaf,
    ):
        yield hub, leaf


async def until_logged(broker: Broker, words: str) -> str:
    async with asyncio.timeout(WAIT_S):
        while words not in broker.log:
            await asyncio.sleep(0.02)
    return next(line for line in broker.log.splitlines() if words in line)


@asynccontextmanager
async def on_bus(
    broker: Broker, me: Peer, *listen_to: type[Beat]
) -> AsyncIterator[tuple[NatsBus, asyncio.Queue[Event]]]:
    inbox: asyncio.Queue[Event] = asyncio.Queue()
    bus = NatsBus(
        me, [broker.url], inbox.put_nowait, MemoryNotes(), listen_to=listen_to, credentials=broker.credentials
    )
    await bus.connect(WAIT_S)
    try:
        yield bus, inbox
    finally:
        await bus.close()


async def connected(broker: Broker, seed: str, errors: list[Exception]) -> Client:
    async def noted(error: Exception) -> None:
        errors.append(error)

    return await nats.connect(
        broker.url,
        tls=broker.credentials.tls(),
        nkeys_seed_str=seed,
        allow_reconnect=False,
        max_reconnect_attempts=0,
        error_cb=noted,
    )


def test_the_sites_peers_hear_each_other_over_tls_with_nkeys(brokers: tuple[Broker, Broker]) -> None:
    hub, leaf = brokers

    async def talk() -> None:
        await until_logged(hub, "Leafnode connection created")
        async with AsyncExitStack() as opened:
            router, told = await opened.enter_async_context(on_bus(hub, ROUTER, Beat))
            main, asked = await opened.enter_async_context(on_bus(leaf, MAIN))
            released = Released(RequestId("r"), Epoch(1))
            async with asyncio.timeout(WAIT_S):
                while told.empty():  # the leaf learns of the router's wish a moment after the router has connected
                    main.broadcast(BEAT)
                    await asyncio.sleep(0.02)
                assert await told.get() == Heard(MAIN, None, BEAT)
                router.send(MAIN, released, "")
                assert await asked.get() == Heard(ROUTER, MAIN, released)

    asyncio.run(talk())


@pytest.mark.parametrize("subject", ["pdd.v1.a.>", "pdd.v1.a.router.router-1.*", ">", "pdd.v1.*.*.*.beat", "_INBOX.>"])
def test_site_b_cannot_subscribe_to_what_is_not_its_own(brokers: tuple[Broker, Broker], subject: str) -> None:
    _, leaf = brokers
    refused: list[Exception] = []

    async def pry() -> None:
        client = await connected(leaf, leaf.credentials.nkey_seed or "", refused)
        await client.subscribe(subject)
        async with asyncio.timeout(WAIT_S):
            while not refused:
                await asyncio.sleep(0.02)
        await client.close()

    asyncio.run(pry())
    assert f'permissions violation for subscription to "{subject}"'.lower() in str(refused[0]).lower()


def test_a_site_b_that_rewrites_its_own_broker_still_hears_nothing_of_site_a(made: Path, tmp_path: Path) -> None:
    """The hub checks by itself: site B's configuration is site B's to change."""
    with broker("a", made / "site-a", tmp_path / "a") as hub:
        greedy = tmp_path / "greedy"
        shutil.copytree(made / "site-b", greedy)
        with broker("b", greedy, tmp_path / "b", hub.leaf_port) as leaf:
            unbound = (tmp_path / "b" / "site.conf").read_text().replace("pdd.v1.b.>", ">")
            (tmp_path / "b" / "site.conf").write_text(unbound)
            leaf.server.stop()
            leaf.server.start()

            async def pry() -> None:
                await until_logged(hub, "Leafnode connection created")
                heard: list[str] = []
                client = await connected(leaf, leaf.credentials.nkey_seed or "", [])

                async def note(message: nats.aio.msg.Msg) -> None:
                    heard.append(message.subject)

                await client.subscribe(">", cb=note)
                await client.flush()
                async with on_bus(hub, ROUTER) as (router, _), on_bus(hub, Peer("a", Role.RELAY, "relay-1", 1)) as _:
                    router.send(Peer("a", Role.RELAY, "relay-1", 1), Released(RequestId("secret"), Epoch(1)), "")
                    async with asyncio.timeout(WAIT_S):
                        while "pdd.v1.b.main_decode.main-1.released" not in heard:
                            router.send(MAIN, Released(RequestId("r"), Epoch(1)), "")  # what is B's own arrives later
                            await asyncio.sleep(0.02)
                await client.close()
                assert {subject.split(".")[2] for subject in heard if subject.startswith("pdd.")} == {"b"}

            asyncio.run(pry())


def test_a_broker_with_a_wrong_key_is_refused_and_both_logs_say_so(made: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    shutil.copytree(made / "site-b", wrong)
    seed = nkey_seed(b"not the key that the hub knows..")
    (wrong / "broker.conf").write_text(f"SITE_B: {nkey_of(seed)}\nSITE_B_SEED: {seed}\n")
    with broker("a", made / "site-a", tmp_path / "a") as hub, broker("b", wrong, tmp_path / "b", hub.leaf_port) as leaf:
        assert "authentication error" in asyncio.run(until_logged(hub, "authentication error")).lower()
        assert "Authorization Violation" in asyncio.run(until_logged(leaf, "Authorization Violation"))


def test_a_broker_without_a_certificate_of_our_authority_is_refused(made: Path, tmp_path: Path) -> None:
    other, mixed = tmp_path / "other", tmp_path / "mixed"
    make_credentials(other, [], [])
    shutil.copytree(made / "site-b", mixed)
    for name in ("cert.pem", "key.pem"):
        shutil.copy(other / "site-b" / name, mixed / name)
    with broker("a", made / "site-a", tmp_path / "a") as hub, broker("b", mixed, tmp_path / "b", hub.leaf_port):
        assert "certificate" in asyncio.run(until_logged(hub, "TLS leafnode handshake error"))


def test_a_service_with_a_wrong_key_is_refused(brokers: tuple[Broker, Broker]) -> None:
    hub, _ = brokers

    async def knock() -> None:
        with pytest.raises(nats.errors.Error):
            await connected(hub, nkey_seed(b"not the key that the hub knows.."), [])

    asyncio.run(knock())
