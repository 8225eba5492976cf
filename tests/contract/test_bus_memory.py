"""What the memory bus alone has: weather, partitions, and all of it from a seed."""

from collections.abc import Callable
from random import Random
from typing import Any

from pdd.adapters.bus_memory import MemoryBus, MemoryHub
from pdd.adapters.notes_memory import MemoryNotes
from pdd.core.messages import Ask
from tests.contract.buses import MAIN, ROUTER


class VirtualClock:
    """Time passes when `run` says so."""

    def __init__(self) -> None:
        self.time = 0.0
        self.due: list[tuple[float, int, Callable[[], None]]] = []

    def now(self) -> float:
        return self.time

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.due.append((self.time + delay_s, len(self.due), action))

    def run(self) -> None:
        for at, _, action in sorted(self.due):
            self.time = at
            action()
        self.due.clear()


def _two(hub: MemoryHub) -> tuple[MemoryBus, list[int]]:
    heard: list[int] = []

    def sink(event: Any) -> None:
        heard.append(event.message.start)

    hub.bus(MAIN, sink, MemoryNotes())
    return hub.bus(ROUTER, lambda event: None, MemoryNotes()), heard


def _send(bus: MemoryBus, *numbers: int) -> None:
    for number in numbers:
        bus.send(MAIN, Ask("x", 1, number), "")


def test_a_delay_shortened_on_the_way_does_not_reorder() -> None:
    clock, delay = VirtualClock(), [1.0]
    bus, heard = _two(MemoryHub(clock, delay_s=lambda sender, receiver: delay[0]))
    _send(bus, 1, 2)
    delay[0] = 0.1
    _send(bus, 3)
    clock.run()
    assert (heard, clock.time) == ([1, 2, 3], 1.0)


def test_loss_duplication_and_reordering_come_from_the_seed_alone() -> None:
    def history(seed: int) -> list[int]:
        clock = VirtualClock()
        hub = MemoryHub(clock, Random(seed))
        hub.weather.loss, hub.weather.duplicate, hub.weather.reorder = 0.2, 0.2, 0.2
        bus, heard = _two(hub)
        _send(bus, *range(200))
        clock.run()
        return heard

    assert history(1) == history(1) != history(2)
    heard = history(1)
    assert len(set(heard)) < 200 and len(heard) > len(set(heard)) and heard != sorted(heard)


def test_a_partition_lets_nothing_through_until_it_is_healed() -> None:
    clock = VirtualClock()
    hub = MemoryHub(clock)
    bus, heard = _two(hub)
    heal_sites, heal_all = hub.cut_sites("b", "a"), hub.partition(lambda sender, receiver: True)
    _send(bus, 1)
    heal_all()
    _send(bus, 2)
    heal_sites()
    _send(bus, 3)
    clock.run()
    assert heard == [3]


def test_a_closed_end_hears_nothing_even_of_what_was_on_its_way() -> None:
    clock = VirtualClock()
    hub = MemoryHub(clock, delay_s=lambda sender, receiver: 1.0)
    heard: list[Any] = []
    main = hub.bus(MAIN, heard.append, MemoryNotes())
    router = hub.bus(ROUTER, heard.append, MemoryNotes())
    _send(router, 1)
    main.close()
    _send(router, 2)
    clock.run()
    assert heard == []
