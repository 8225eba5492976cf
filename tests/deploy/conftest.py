"""Both sites in containers of an engine of our own, for all tests of a run; after all others, since they fill the machine.

Skipped, with the reason at the end of the run, where an engine cannot run or images cannot be made. Where it can, what fails
is ours and fails the run.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from infra.ci.budget import Budget, Unavailable
from infra.ci.engine import CommandFailed, docker_engine
from infra.ci.images import make_images
from infra.ci.machine import prepare
from tests.deploy.sites import WORKERS, Sites

IN_CONTAINERS = Path(__file__).with_name("test_compose_e2e.py")
PREPARE_S, WHOLE_S = 480.0, 720.0  # in CI, where nobody waits longer
UNHURRIED = 5.0  # times so long where somebody asked for it
NOT_RUN: list[str] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path == IN_CONTAINERS)  # stable: all else stays as it was


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in NOT_RUN:
        terminalreporter.write_line(f"not run: {reason}")


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    in_ci = os.environ.get("CI") == "true"
    if not in_ci and os.environ.get("E2E") != "1":
        skip("CI=true or `make e2e` runs it")
    pace = 1.0 if in_ci else UNHURRIED
    budget, until = Budget(PREPARE_S * pace), time.monotonic() + WHOLE_S * pace
    try:
        plugin = prepare(budget, may_install=in_ci)
        with docker_engine(plugin) as engine:
            make_images(engine, budget)
            sites = Sites(engine, tmp_path_factory.mktemp("sites"), until)
            start(sites)
            with sites.shaped_line():
                yield sites
    except Unavailable as error:
        skip(str(error))


@pytest.fixture(autouse=True)
def within_the_whole(request: pytest.FixtureRequest) -> None:
    """What is in containers has a bound as a whole: no test is begun after it."""
    if "sites" in request.fixturenames:
        sites: Sites = request.getfixturevalue("sites")
        assert time.monotonic() < sites.until, f"the tests in containers may take {WHOLE_S:.0f} s together"


def skip(reason: str) -> NoReturn:
    NOT_RUN.append(f"both sites in containers: {reason}")
    pytest.skip(NOT_RUN[-1])


def start(sites: Sites) -> None:
    try:
        sites.up()
    except CommandFailed as error:
        told = sites.compose("logs", "--no-color", "--tail", "20")
        pytest.fail(f"{error}\n{sites.compose('ps', '--all')}\n{told}")
    sites.wait(lambda: sites.hears(*WORKERS), "the router to hear every worker")
