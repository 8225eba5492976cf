"""A Docker engine for one run: started by us, ended by its pid, and nothing of it left but its cache of layers.

Its socket, state and logs lie in a scratch folder; its images lie in the cache, so that a second run builds nothing again.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .machine import CACHE, Unavailable, docker_program

START_S, STOP_S, LOOK_S = 30.0, 20.0, 0.1
COMMAND_S = 900.0
GATEWAY = "172.31.253.1"  # the bridge that images are built on; fixed, so that layers built with it stay valid
BRIDGE = Path("/sys/class/net/docker0")
ADDRESSES = "base=172.31.0.0/17,size=24"


class CommandFailed(Exception):
    """A docker command failed; the message has the end of what it said."""


class DockerEngine:
    """What a running engine is asked with. `environment` leads any docker command to it."""

    def __init__(self, scratch: Path, plugin: Path) -> None:
        self.scratch = scratch
        self.socket = scratch / "docker.sock"
        config = scratch / "client"
        (config / "cli-plugins").mkdir(parents=True)
        (config / "cli-plugins" / "docker-compose").symlink_to(plugin)
        self.environment = os.environ | {
            "DOCKER_HOST": f"unix://{self.socket}",
            "DOCKER_CONFIG": str(config),
            "DOCKER_BUILDKIT": "1",
            "PATH": f"/usr/bin:{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
        }

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
    """Raises Unavailable where an engine does not start, or another runs: two would rewrite each other's packet filter."""
    if other := _running():
        raise Unavailable(f"another Docker engine runs here (pid {other}): end it for this run")
    with tempfile.TemporaryDirectory(prefix="pdd-docker-") as folder:
        engine = DockerEngine(Path(folder), plugin)
        log = engine.scratch / "dockerd.log"
        had_bridge = BRIDGE.exists()
        process = _start(engine, log)
        try:
            _await(engine, process, log)
            _remove_everything(engine)
            yield engine
        finally:
            with contextlib.suppress(CommandFailed):
                _remove_everything(engine)  # networks first: an engine that ended leaves its bridges behind
            _stop(process)
            _unmount(engine.scratch)
            if not had_bridge:
                subprocess.run(["ip", "link", "delete", BRIDGE.name], stderr=subprocess.DEVNULL, check=False)


def _running() -> str | None:
    """The pid of a Docker engine on this machine."""
    for named in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if named.read_text().strip() == "dockerd":
                return named.parent.name
    return None


def _start(engine: DockerEngine, log: Path) -> subprocess.Popen[bytes]:
    scratch = engine.scratch
    command = [
        *("dockerd", "--host", f"unix://{engine.socket}", "--pidfile", str(scratch / "pid")),
        *("--data-root", str(CACHE / "docker"), "--exec-root", str(scratch / "exec")),
        *("--bip", f"{GATEWAY}/24", "--default-address-pool", ADDRESSES, "--mtu", str(_mtu())),
    ]
    (CACHE / "docker").mkdir(parents=True, exist_ok=True)
    with log.open("wb") as sink:
        return subprocess.Popen(
            command,
            env=engine.environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )


def _await(engine: DockerEngine, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while not engine.answers():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
            raise Unavailable(f"no Docker engine starts here:\n{tail}")
        time.sleep(LOOK_S)


def _remove_everything(engine: DockerEngine) -> None:
    """Containers, networks and volumes of this run, or of one that was killed. Images and layers stay."""
    _for_each(engine, ("ps", "--all", "--quiet"), ("rm", "--force", "--volumes"))
    _for_each(engine, ("network", "ls", "--quiet", "--filter", "type=custom"), ("network", "rm"))
    _for_each(engine, ("volume", "ls", "--quiet"), ("volume", "rm", "--force"))


def _for_each(engine: DockerEngine, listing: Sequence[str], action: Sequence[str]) -> None:
    names = engine.docker(*listing).split()
    if names:
        engine.docker(*action, *names)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_S)


def _unmount(scratch: Path) -> None:
    """Network namespaces of containers stay mounted when an engine had to be killed."""
    mounted = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for place in sorted((one for one in mounted if one.startswith(f"{scratch}/")), reverse=True):
        subprocess.run(["umount", "--lazy", place], check=False)
    shutil.rmtree(scratch / "exec", ignore_errors=True)


def _mtu() -> int:
    """Of the way out: a bridge with a larger one loses packets where nothing tells so."""
    sizes = [int(file.read_text()) for file in Path("/sys/class/net").glob("e*/mtu")]
    return min([1500, *sizes])
