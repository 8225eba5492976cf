"""Prints what pyproject.toml depends on, one requirement a line: requirements.py PYPROJECT [EXTRA ...]. Standard library only.

`requirements.py --build PYPROJECT` prints what it is built with. An image installs these before it copies our code, so that a
change of code does not install them again.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Raises KeyError for an extra that does not exist."""
    project = tomllib.loads(pyproject.read_text())["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


def build_requirements(pyproject: Path) -> list[str]:
    return list(tomllib.loads(pyproject.read_text())["build-system"]["requires"])


if __name__ == "__main__":
    first, *others = sys.argv[1:]
    found = build_requirements(Path(others[0])) if first == "--build" else requirements(Path(first), others)
    print("\n".join(found))
