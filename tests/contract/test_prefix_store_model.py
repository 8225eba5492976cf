"""Any traffic gives the answers of a naive store."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdd.adapters.local_servers import LocalServer, free_port, redis_server
from pdd.core.effects import KeepHolder, ReplaceBlocks, StoreBlocks
from pdd.core.ids import BlockHash, Peer, Role
from tests.contract.prefix_stores import hash_of, in_memory, on_redis, run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    data = tmp_path_factory.mktemp("redis")
    with LocalServer(redis_server("redis", free_port(), data), data / "redis.log") as running:
        yield running


@pytest.fixture(params=["memory", "redis"])
def a_store(request: pytest.FixtureRequest) -> Callable[[], Any]:
    if request.param == "memory":
        return in_memory
    server = request.getfixturevalue("server")
    return lambda: on_redis(server)


PATHS = ["".join(path) for depth in range(1, 6) for path in product("lr", repeat=depth)]
LIVES = [Peer("a", Role.PREFILL, name, life) for name in ("p-1", "m-1", "m-2") for life in (1, 2, 2**62)]

paths, lives = st.sampled_from(PATHS), st.sampled_from(LIVES)
traffic = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), lives, paths),
        st.tuples(st.just("evict"), lives, paths),
        st.tuples(st.just("replace"), lives, st.lists(paths, max_size=3)),
        st.tuples(st.just("keep"), lives, st.sampled_from([60.0, 60.0, 0.0])),
        st.tuples(st.just("find"), st.none(), st.sampled_from([path for path in PATHS if len(path) == 5])),
    ),
    max_size=40,
)


def _up_to(path: str) -> list[str]:
    return [path[:stop] for stop in range(1, len(path) + 1)]


def _names(held: list[str]) -> tuple[BlockHash, ...]:
    return tuple(map(hash_of, held))


class NaiveStore:
    """By name: the newest life, whether it is alive, and the paths it holds, one by one."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, bool, list[str]]] = {}
        self.unknown = 0

    def hear(self, what: str, peer: Peer, said: Any) -> None:
        life, alive, held = self.known.get(peer.name, (0, False, []))
        if life > peer.incarnation:
            return
        if life < peer.incarnation:
            self.known.pop(peer.name, None)
            self.unknown += what != "replace"
            if what in ("extend", "evict"):
                return
            alive, held = True, []
        if what == "extend":
            held = held + _up_to(said)
        elif what == "evict":
            held = [path for path in held if not path.startswith(said)]
        elif what == "replace":
            held = [prefix for path in said for prefix in _up_to(path)]
        else:
            alive = said > 0
        self.known[peer.name] = (peer.incarnation, alive, held)

    def find(self, path: str) -> dict[str, int]:
        lengths = {
            name: sum(prefix in held for prefix in _up_to(path))
            for name, (_, alive, held) in self.known.items()
            if alive
        }
        return {name: length for name, length in lengths.items() if length}


@given(traffic)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_traffic_gives_the_answers_of_a_naive_store(a_store: Callable[[], Any], traffic: list[Any]) -> None:
    async def story() -> None:
        naive = NaiveStore()
        async with a_store() as bench:
            for what, peer, said in traffic:
                if what == "find":
                    assert await bench.holders(*_names(_up_to(said))) == naive.find(said)
                else:
                    naive.hear(what, peer, said)
                    _tell(bench.store, what, peer, said)
            await bench.holders(*_names(["l"]))
            assert bench.failed.qsize() == naive.unknown

    run(story())


def _tell(store: Any, what: str, peer: Peer, said: Any) -> None:
    if what == "extend":
        store.store(StoreBlocks(peer, _names(_up_to(said)), ()))
    elif what == "evict":
        store.store(StoreBlocks(peer, (), _names([path for path in PATHS if path.startswith(said)])))
    elif what == "replace":
        store.replace(ReplaceBlocks(peer, _names([prefix for path in said for prefix in _up_to(path)])))
    else:
        store.keep(KeepHolder(peer, said))
