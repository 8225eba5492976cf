"""Fixtures that put a question to every KvLink: import `make` and `bench` where they are used."""

from collections.abc import Callable, Iterator

import pytest

from pdd.adapters.kv_nixl import installed
from tests.contract.kv_bench import BENCHES, SHAPE, Bench

PER_TOKEN = SHAPE.bytes_per_token
Make = Callable[..., Bench]
NO_NIXL = pytest.mark.skipif(not installed(), reason="NIXL is not installed: pip install --no-deps nixl nixl-cu12")
ADAPTERS = [pytest.param(name, marks=[NO_NIXL] if name == "nixl" else []) for name in BENCHES]


@pytest.fixture(params=ADAPTERS)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    made: list[Bench] = []

    def build(staging_bytes: int = 4096 * PER_TOKEN, chunk_tokens: int = 16, **more: object) -> Bench:
        made.append(BENCHES[request.param](staging_bytes, chunk_tokens, **more))
        return made[-1]

    yield build
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()
