"""A Docker engine for one run, in a place apart (apart.py): nothing of it is left but its cache of layers.

Its socket, state and logs lie in a scratch folder; its images lie in the cache, so that a second run builds nothing again.
"""

import contextlib
import fcntl
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .apart import Apart, apart
from .budget import Unavailable
from .machine import CACHE, docker_program

START_S, LOOK_S = 30.0, 0.1
COMMAND_S, REMOVE_S = 120.0, 60.0
GATEWAY = "172.31.253.1"  # the bridge that images are built on; fixed, so that layers built with it stay valid
CACHE_KEPT = "8GB"
ADDRESSES = "base=172.31.0.0/17,size=24"


class CommandFailed(Exception):
    """A docker command failed; the message has the end of what it said."""


class DockerEngine:
    """What a running engine is asked with. `environment` leads any docker command to it."""

    def __init__(self, scratch: Path, environment: dict[str, str], place: Apart) -> None:
        self.log = scratch / "dockerd.log"
        self.environment = environment
        self.place = place

    def docker(self, *words: str, cwd: Path | None = None, timeout_s: float = COMMAND_S) -> str:
        """Its standard output. Raises CommandFailed."""
        command = [docker_program(), *words]
        try:
            done = subprocess.run(
                command, env=self.environment, cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise CommandFailed(f"docker {' '.join(words)}: took more than {timeout_s:.0f} s") from error
        if done.returncode:
            said = (done.stdout + done.stderr).strip()[-3000:]
            raise CommandFailed(f"docker {' '.join(words)}: status {done.returncode}\n{said}")
        return done.stdout

    def answers(self) -> bool:
        try:
            self.docker("version", timeout_s=5)
        except CommandFailed:
            return False
        return True


@contextlib.contextmanager
def docker_engine(plugin: Path) -> Iterator[DockerEngine]:
    """Raises Unavailable where no engine starts, or another run has the cache."""
    with _cache_to_ourselves() as lock, tempfile.TemporaryDirectory(prefix="pdd-docker-") as folder:
        scratch = Path(folder)
        with (scratch / "dockerd.log").open("w+b") as log:
            environment = _environment(scratch, plugin)
            with apart(_command(scratch), environment, log, scratch, kept_open=(lock,)) as place:
                engine = DockerEngine(scratch, environment, place)
                _await(engine)
                try:
                    _remove_everything(engine)
                except CommandFailed as error:
                    raise Unavailable(f"what a killed run left cannot be removed: {error}") from error
                yield engine
                with contextlib.suppress(CommandFailed):
                    _remove_everything(engine)


@contextlib.contextmanager
def _cache_to_ourselves() -> Iterator[int]:
    """A lock that the engine holds too: it is free when the engine has ended, and not when we have."""
    (CACHE / "docker").mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        until = time.monotonic() + START_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Unavailable(f"another run uses {CACHE}") from None
                time.sleep(LOOK_S)
        yield lock.fileno()


def _environment(scratch: Path, plugin: Path) -> dict[str, str]:
    """Leads any docker command to the engine, and to our plugin."""
    config = scratch / "client"
    (config / "cli-plugins").mkdir(parents=True)
    (config / "cli-plugins" / "docker-compose").symlink_to(plugin)
    return os.environ | {
        "DOCKER_HOST": f"unix://{scratch}/docker.sock",
        "DOCKER_CONFIG": str(config),
        "DOCKER_BUILDKIT": "1",
        "PATH": f"/usr/bin:{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
    }


def _command(scratch: Path) -> list[str]:
    return [
        *("dockerd", "--host", f"unix://{scratch}/docker.sock", "--pidfile", str(scratch / "pid")),
        *("--data-root", str(CACHE / "docker"), "--exec-root", str(scratch / "exec")),
        *("--bip", f"{GATEWAY}/24", "--default-address-pool", ADDRESSES),
    ]


def _await(engine: DockerEngine) -> None:
    until = time.monotonic() + START_S
    while not engine.answers():
        if time.monotonic() > until:
            tail = "\n".join(engine.log.read_text(errors="replace").splitlines()[-5:])
            raise Unavailable(f"no Docker engine starts here:\n{tail}")
        time.sleep(LOOK_S)


def _remove_everything(engine: DockerEngine) -> None:
    """Containers, networks and volumes of this run, or of one that was killed. Images stay, and layers."""
    _for_each(engine, ("ps", "--all", "--quiet"), ("rm", "--force", "--volumes"))
    _for_each(engine, ("network", "ls", "--quiet", "--filter", "type=custom"), ("network", "rm"))
    _for_each(engine, ("volume", "ls", "--quiet"), ("volume", "rm", "--force"))
    engine.docker("image", "prune", "--force", timeout_s=REMOVE_S)
    engine.docker("builder", "prune", "--force", "--keep-storage", CACHE_KEPT, timeout_s=REMOVE_S)


def _for_each(engine: DockerEngine, listing: Sequence[str], action: Sequence[str]) -> None:
    names = engine.docker(*listing).split()
    if names:
        engine.docker(*action, *names, timeout_s=REMOVE_S)
