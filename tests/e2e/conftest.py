"""Deployments for the end-to-end tests: real processes, real brokers, a real Redis, sockets, and a line between the sites."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pdd.cli.deployment import Deployment
from pdd.cli.fleet import Engine, Fleet, Line
from pdd.cli.run_directory import RunDirectory
from tests.e2e.client import Client
from tests.models import make_tiny_model

PAGE = 16
CHUNK = 48  # not a multiple of the hash block, so that chunks end within pages and blocks
CONTEXT = 1024


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def fleet(model: Path, engine: Engine, **changes: object) -> Fleet:
    """Small pools, a line of 200 Mbit/s and 5 ms, test hooks on."""
    settings = {
        "TEST_HOOKS": "true",
        "PAGE_TOKENS": str(PAGE),
        "PAGES": "640",
        "CHUNK_TOKENS": str(CHUNK),
        "MAX_CONTEXT": str(CONTEXT),
        "DRAIN_S": "5",
    }
    told = {"settings": settings, "line": Line(200.0, 5.0)} | changes
    return Fleet(model_dir=model, engine=engine, router_port=0, **told)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def torch_client(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    yield from serving(fleet(model, Engine.TORCH), tmp_path_factory.mktemp("torch"))


def serving(wanted: Fleet, folder: Path) -> Iterator[Client]:
    with Deployment(wanted, RunDirectory(folder)) as deployment:
        client = Client(deployment)
        try:
            yield client
        finally:
            client.close()
