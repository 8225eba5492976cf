"""Prints what pyproject.toml depends on, one requirement a line: requirements.py PYPROJECT [EXTRA ...]. Standard library only.

An image installs these before it copies our code, so that a change of code does not install them again.
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Raises KeyError for an extra that does not exist."""
    project = tomllib.loads(pyproject.read_text())["project"]
    optional = project["optional-dependencies"]
    return [*project["dependencies"], *(line for extra in extras for line in optional[extra])]


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]), sys.argv[2:])))
