"""What a machine needs to bring both sites up in containers of its own: root, a Docker engine's programs, a Compose plugin.

`prepare` looks, and installs Debian packages only where it was told that it may. What is missing raises Unavailable, with a
reason that a skipped test can print.
"""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from .budget import Budget, Unavailable

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pdd-ci"
PROGRAMS = {
    "dockerd": "docker.io",
    "iptables": "iptables",
    "mmdebstrap": "mmdebstrap",
    "busybox": "busybox-static",
    "openssl": "openssl",
    "slirp4netns": "slirp4netns",
    "nsenter": "util-linux",
    "ip": "iproute2",
}
PLUGIN_DIRS = ("/usr/libexec/docker/cli-plugins", "/usr/lib/docker/cli-plugins", "/usr/local/lib/docker/cli-plugins")
PLUGIN_RELEASE = "trixie"  # the first Debian release with Compose 2
OLDEST_COMPOSE = (2, 24)
INSTALL_S, LOOK_S = 300, 10


def prepare(budget: Budget, *, may_install: bool) -> Path:
    """Returns the Compose plugin."""
    if os.name != "posix" or os.geteuid() != 0:
        raise Unavailable("needs root: it starts a Docker engine of its own and shapes the line between the sites")
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program, path=_path()) is None]
    if missing and not may_install:
        raise Unavailable(f"needs {', '.join(missing)}: apt-get install {' '.join(missing)}")
    if missing:
        _apt(budget, "update")
        _apt(budget, "install", "--yes", "--no-install-recommends", *missing)
    return compose_plugin() or _fetch_plugin(budget)


def docker_program() -> str:
    """Debian's own first: a newer client without its build plugin falls back to a builder that cannot build our images."""
    found = shutil.which("docker", path=f"/usr/bin:{_path()}")
    if found is None:
        raise Unavailable("needs the docker command")
    return found


def compose_plugin() -> Path | None:
    """A program, too, that looks at compose files without an engine."""
    for folder in (*PLUGIN_DIRS, CACHE):
        plugin = Path(folder) / "docker-compose"
        if plugin.exists() and _version(plugin) >= OLDEST_COMPOSE:
            return plugin
    return None


def _version(plugin: Path) -> tuple[int, ...]:
    told = subprocess.run(
        [plugin, "docker-cli-plugin-metadata"], capture_output=True, text=True, timeout=LOOK_S, check=False
    )
    numbers = re.search(r'"Version":\s*"v?(\d+)\.(\d+)', told.stdout)
    return tuple(map(int, numbers.groups())) if numbers else (0,)


def _fetch_plugin(budget: Budget) -> Path:
    """Into the cache, from a newer Debian release than this machine's: nothing is installed."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        options = _apart(place, _mirror(budget))
        _apt(budget, *options, "update")
        _apt(budget, *options, "download", "docker-compose", cwd=place)
        package = next(place.glob("docker-compose_*.deb"))
        budget.run(["dpkg", "-x", str(package), str(place / "whole")], INSTALL_S)
        CACHE.mkdir(parents=True, exist_ok=True)
        shutil.copy2(next((place / "whole").glob("usr/libexec/docker/cli-plugins/docker-compose")), CACHE)
    return CACHE / "docker-compose"


def _apart(place: Path, mirror: str) -> list[str]:
    """Options with which apt knows nothing but PLUGIN_RELEASE, from `mirror`."""
    sources = place / "sources"
    (place / "lists" / "partial").mkdir(parents=True)
    (place / "cache" / "archives" / "partial").mkdir(parents=True)
    sources.mkdir()
    (sources / "newer.list").write_text(f"deb {mirror} {PLUGIN_RELEASE} main\n")
    told = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": sources,
        "Dir::State::Lists": place / "lists",
        "Dir::Cache": place / "cache",
        "APT::Sandbox::User": "root",
    }
    return [word for name, value in told.items() for word in ("-o", f"{name}={value}")]


def _mirror(budget: Budget) -> str:
    """Of Debian, as this machine uses it."""
    asked = ("--format", "$(SITE)", "Origin: Debian", "Created-By: Packages")
    told = budget.run(["apt-get", "indextargets", *asked], LOOK_S)
    for line in told.splitlines():
        if not line.rstrip("/").endswith("-security"):
            return line
    raise Unavailable("apt knows no mirror of Debian here")


def _apt(budget: Budget, *words: str, cwd: Path | None = None) -> None:
    told = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    budget.run(["apt-get", "-q", "-o", "DPkg::Lock::Timeout=60", *words], INSTALL_S, cwd=cwd, env=told)


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/bin:/bin"
