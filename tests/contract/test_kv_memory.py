"""The memory line under random faults, in virtual time: repeated tickets always bring everything home, once and right."""

import random

import pytest

from pdd.adapters.kv_memory_lines import RandomFaults, no_fault
from pdd.core.events import Event, KvClosed, KvLanded, TransferFailed
from tests.contract.kv_bench import SHAPE, MemoryBench

TOKENS = 600
TICKET_S = 1.5


def story(seed: int) -> tuple[MemoryBench, list[tuple[float, Event]]]:
    """One transfer whose receiver repeats its ticket until everything is there, over a line that errs for ten seconds."""
    rng = random.Random(seed)
    bench = MemoryBench(4096 * SHAPE.bytes_per_token, 16)
    world, said = bench.world, []
    for end in (bench.sender, bench.receiver):
        end.events = Stamped(said, world.now)  # type: ignore[assignment]
    bench.lines.shape("a", "b", rng.choice([50e3, 200e3, 1e9]), rng.choice([0.001, 0.05, 0.3]))
    bench.err(RandomFaults(rng, *(rng.choice([0, 0.05, 0.2]) for _ in range(5)), late_s=rng.choice([0.01, 0.5])))
    at = rng.uniform(0.1, 5)
    world.call_later(at, rng.choice([bench.cut, bench.stall, lambda: None]))
    world.call_later(at + rng.uniform(0.1, 4), bench.restore)
    world.call_later(10.0, lambda: bench.err(no_fault))
    bench.expect(0, TOKENS)

    def ticket() -> None:
        if bench.missing(0, TOKENS) or not bench.receiver.all(KvClosed):
            bench.reopen(0, TOKENS)
            world.call_later(TICKET_S * (1 + world.now() / 4), ticket)

    ticket()
    world.run(300.0)
    return bench, said


class Stamped(list[Event]):
    def __init__(self, said: list[tuple[float, Event]], now: object) -> None:
        super().__init__()
        self._said, self._now = said, now

    def append(self, event: Event) -> None:
        super().append(event)
        self._said.append((self._now(), event))  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(40))
def test_repeated_tickets_complete_a_transfer_over_any_line(seed: int) -> None:
    bench, _ = story(seed)
    assert bench.missing(0, TOKENS) == []
    assert bench.receiver.landed_tokens() == TOKENS  # each token once
    assert bench.receiver.all(KvClosed)
    assert bench.sender.pages.equal(bench.taken(), 0, TOKENS)
    bench.drop()
    assert bench.staging.used_bytes == 0
    bench.close()


def test_the_same_seed_tells_the_same_story() -> None:
    for seed in range(5):
        assert story(seed)[1] == story(seed)[1]


def test_a_link_whose_process_ends_breaks_its_connections_and_leaves_its_address() -> None:
    bench = MemoryBench(4096 * SHAPE.bytes_per_token, 16)
    bench.slow()
    bench.expect(0, 500)
    bench.open()
    bench.offer(0, 500)
    bench.until_event(bench.receiver, KvLanded)
    bench.close()
    assert bench.sender.all(TransferFailed) and bench.lines.reach("a", "md") is None
