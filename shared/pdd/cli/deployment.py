"""Start a deployment on this machine, wait until it serves, end it. Its record on disk suffices to end it from elsewhere."""

import socket
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from types import TracebackType
from typing import Any

import httpx
import msgspec

from ..core.errors import PddError
from ..runtime.settings import child_environment
from .fleet import HOST, LINE, ROOT, ROUTER, Fleet, Part, Probe, parts_of
from .ports import is_free
from .processes import ProcessRecord, alive, end, last_lines, spawn
from .run_directory import Deployed, RunDirectory

READY_S = 120.0
LOOK_S = 0.1
PROBE_S = 1.0
SERVICE_GRACE_S = 15.0  # more than the services' own drain
SERVER_GRACE_S = 5.0
SHOWN_LINES = 15
WORKERS_HEARD = "the router to hear every worker"

Progress = Callable[[Sequence[str]], None]  # what is waited for


class DeploymentError(PddError):
    """The deployment cannot start or is not there; the message says what to do, or shows the end of a part's log."""


class Deployment:
    """`with Deployment(fleet, run) as running:` serves inside and leaves nothing behind, whatever happens.

    `later` names workers that `start` leaves out and `begin` may add while requests are served.
    """

    def __init__(self, fleet: Fleet, run: RunDirectory, later: Collection[str] = ()) -> None:
        self.fleet, self.run, self.later = fleet, run, tuple(later)
        self.parts: list[Part] = []
        self._children: dict[int, subprocess.Popen[bytes]] = {}
        self._deployed = Deployed()

    def start(self, progress: Progress = lambda waiting: None, ready_s: float = READY_S) -> None:
        """Returns when requests are served. Raises DeploymentError, having ended what it had started."""
        self._check()
        self.run.prepare()
        self.parts = parts_of(self.fleet, self.run.data)
        self._deployed = Deployed(
            router=self._address(ROUTER, "http"),
            line_control=self._address(LINE, "control"),
            model=str(self.fleet.model_dir or ""),
        )
        until = time.monotonic() + ready_s
        try:
            begun: list[Part] = []
            now = [part for part in self.parts if part.name not in self.later]
            for _, gate in groupby(now, key=lambda part: part.gate):
                together = list(gate)
                for part in together:
                    self._spawn(part)
                begun += together
                self._await(together, begun, until, progress, self._unheard)
        except BaseException:
            self.stop()
            raise

    def begin(self, name: str, ready_s: float = READY_S) -> None:
        """Start one part that was left out or has ended, under its name and on its ports. Returns when it is ready."""
        part = self.launch(name)
        self._await([part], [part], time.monotonic() + ready_s)

    def launch(self, name: str) -> Part:
        """The same without waiting: a worker may start before its broker, and is ready when that comes."""
        part = next(part for part in self.parts if part.name == name)
        old = [record for record in self._deployed.processes if record.name == name]
        self._reap()
        if any(alive(record) for record in old):
            raise DeploymentError(f"{name} runs already")
        left = tuple(record for record in self._deployed.processes if record.name != name)
        self._deployed = msgspec.structs.replace(self._deployed, processes=left)
        self._spawn(part)
        return part

    def end(self, name: str) -> None:
        """Ask one part to end, and wait until it has; `begin` starts it again."""
        end([self.record(name)], SERVICE_GRACE_S, self._reap)

    def stop(self) -> list[str]:
        """In the reverse order of starting. Returns the names of those that had to be killed."""
        return end_deployed(self.run, self._reap)

    def ended(self) -> list[ProcessRecord]:
        """Parts that ended by themselves, or by another's hand."""
        self._reap()
        return [record for record in self._deployed.processes if not alive(record)]

    def record(self, name: str) -> ProcessRecord:
        return next(record for record in self._deployed.processes if record.name == name)

    @property
    def router_url(self) -> str:
        return f"http://{self._deployed.router}"

    @property
    def line_control(self) -> str:
        return self._deployed.line_control

    def __enter__(self) -> "Deployment":
        if not self._deployed.processes:
            self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _check(self) -> None:
        if running := self.run.running():
            names = ", ".join(record.name for record in running)
            raise DeploymentError(f"already running from {self.run.path}: {names}; `pdd down` ends it")
        if not (ROOT / "services").is_dir():
            raise DeploymentError(f"the services are not in {ROOT}: install PDD from a checkout, with `make setup`")
        port = self.fleet.router_port
        if port and not is_free(port):
            raise DeploymentError(f"port {port} is taken by another program: end it, or choose another with --port")

    def _address(self, name: str, port: str) -> str:
        return next(f"{HOST}:{part.ports[port]}" for part in self.parts if part.name == name)

    def _spawn(self, part: Part) -> None:
        record, child = spawn(
            part.name,
            part.command,
            site=part.site,
            env=child_environment(part.env),
            cwd=ROOT,
            log=self.run.logs / f"{part.name}.log",
            ports=part.ports,
        )
        self._children[record.pid] = child
        self._deployed = msgspec.structs.replace(self._deployed, processes=(*self._deployed.processes, record))
        self.run.write(self._deployed)

    def _await(
        self,
        parts: Sequence[Part],
        living: Sequence[Part],
        until: float,
        progress: Progress = lambda waiting: None,
        also: Callable[[], list[str]] = list,
    ) -> None:
        """Until `parts` are ready and `also` names nothing. That one of `living` ends meanwhile is an error."""
        waiting = list(parts)
        while True:
            for part in living:
                self._must_live(part)
            waiting = [part for part in waiting if not is_ready(part)]
            names = [part.name for part in waiting] or also()
            progress(names)
            if not names:
                return
            if time.monotonic() > until:
                tails = [f"{part.name}; the end of its log:\n{self._tail(part)}" for part in waiting]
                raise DeploymentError("not ready in time: " + "\n".join(tails or names))
            time.sleep(LOOK_S)

    def _unheard(self) -> list[str]:
        """After the last gate a request must find every worker."""
        if len(self._deployed.processes) < len(self.parts) - len(self.later):
            return []
        workers = sum(self.fleet.workers.values()) - len(self.later)
        status = router_status(self._deployed.router)
        heard = (
            sum(worker["alive"] for worker in status["workers"] if worker["role"] in self.fleet.workers)
            if status
            else 0
        )
        return [] if heard >= workers else [WORKERS_HEARD]

    def _must_live(self, part: Part) -> None:
        code = self._children[self.record(part.name).pid].poll()
        if code is not None:
            raise DeploymentError(f"{part.name} ended with status {code}; the end of its log:\n{self._tail(part)}")

    def _tail(self, part: Part) -> str:
        log = self.record(part.name).log
        return "\n".join([*(f"  {line}" for line in last_lines(log, SHOWN_LINES)), f"  (all of it: {log})"])

    def _reap(self) -> None:
        for child in self._children.values():
            child.poll()


def is_ready(part: Part) -> bool:
    match part.probe:
        case Probe.CONNECT:
            return _connects(next(iter(part.ports.values())))
        case Probe.HTTP:
            return _get(f"http://{HOST}:{part.ports['http']}/ready") is not None


def router_status(router: str) -> dict[str, Any] | None:
    """What /status says; None where no router answers."""
    answer = _get(f"http://{router}/status")
    return dict(answer.json()) if answer else None


def _connects(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=PROBE_S).close()
    except OSError:
        return False
    return True


def _get(url: str) -> httpx.Response | None:
    """A good answer, or None. Proxies of the environment are no way to 127.0.0.1."""
    try:
        answer = httpx.get(url, timeout=PROBE_S, trust_env=False)
    except httpx.HTTPError:
        return None
    return answer if answer.is_success else None


def end_deployed(run: RunDirectory, reap: Callable[[], None] = lambda: None) -> list[str]:
    """End what the record in `run` names, and only that: router, workers, index, then the line and the servers."""
    deployed = run.read()
    if deployed is None:
        return []
    killed: list[str] = []
    for group, grace_s in _ending_order(deployed.processes):
        killed += end(group, grace_s, reap)
    run.forget()
    return killed


def _ending_order(processes: Sequence[ProcessRecord]) -> list[tuple[list[ProcessRecord], float]]:
    services = [record for record in processes if "http" in record.ports]
    router = [record for record in services if record.name == ROUTER]
    workers = [record for record in services if record.name != ROUTER]
    servers = [record for record in processes if "http" not in record.ports]
    return [(router, SERVICE_GRACE_S), (workers, SERVICE_GRACE_S), (servers[::-1], SERVER_GRACE_S)]
