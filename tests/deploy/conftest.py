"""Both sites in containers of an engine of our own, for all tests of a run. Skipped, with the reason, where that cannot be."""

import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

from infra.ci.engine import CommandFailed, docker_engine
from infra.ci.images import make_images
from infra.ci.machine import Unavailable, prepare
from tests.deploy.sites import WORKERS, Sites

NOT_RUN: list[str] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for reason in NOT_RUN:
        terminalreporter.write_line(f"not run: {reason}")


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    in_ci = os.environ.get("CI") == "true"
    if os.environ.get("E2E") != "1":
        skip("`make e2e` runs it")
    try:
        plugin = prepare(may_install=in_ci)
        with docker_engine(plugin) as engine:
            make_images(engine)
            sites = Sites(engine, tmp_path_factory.mktemp("sites"))
            start(sites)
            with sites.shaped_line():
                yield sites
    except Unavailable as error:
        skip(str(error))


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
