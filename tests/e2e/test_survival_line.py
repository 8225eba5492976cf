"""CASE 9 over real processes: a line that flips, cuts, doubles, loses and reorders KV costs time, never a token."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pdd.adapters.kv_memory_lines import Fault, Parcel, flipped, no_fault
from pdd.cli.ports import FreePorts
from pdd.core.ids import Role
from pdd.core.wire import ChunkFrame
from tests.contract.kv_relay import Relay
from tests.e2e.client import Client, until
from tests.e2e.conftest import serving
from tests.e2e.streams import Stream, counted, survivors
from tests.models import prompt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

MD = "main_decode-1"
seeds = iter(range(900, 1000))


class Once:
    """The fault happens to the next chunk that carries KV."""

    def __init__(self, change: Fault) -> None:
        self.happened, self._change = False, change

    def __call__(self, parcel: Parcel) -> list[Parcel]:
        if self.happened or not isinstance(parcel.frame, ChunkFrame):
            return [parcel]
        self.happened = True
        return self._change(parcel)


class Swap:
    """Each second chunk overtakes the one before it."""

    def __init__(self) -> None:
        self._late: list[Parcel] = []
        self.happened = False

    def __call__(self, parcel: Parcel) -> list[Parcel]:
        if self._late and isinstance(parcel.frame, ChunkFrame):
            self.happened = True
            return [parcel, self._late.pop()]
        if self.happened or not isinstance(parcel.frame, ChunkFrame):
            return [parcel]
        self._late.append(parcel)
        return []


def flip(parcel: Parcel) -> list[Parcel]:
    assert parcel.payload
    return [parcel._replace(payload=flipped(parcel.payload, parcel.payload.nbytes // 2))]


def cut_short(parcel: Parcel) -> list[Parcel]:
    assert parcel.payload
    return [parcel._replace(payload=parcel.payload[:-7])]


@pytest.fixture(scope="module")
def line(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Relay]]:
    """A deployment whose KV reaches MD through the relay alone."""
    port = FreePorts().take()
    relay = Relay(f"127.0.0.1:{port}")
    at_main = {"KV_PORT": f"{port}", "KV_ADDRESS": relay.address}
    wanted = survivors(model, settings={"LINE__PACKED": "false"}, role_settings={Role.MAIN: at_main})
    try:
        for client in serving(wanted, tmp_path_factory.mktemp("lies")):
            yield client, relay
    finally:
        relay.close()


@pytest.mark.parametrize(
    ("fault", "counted_as"),
    [
        (Once(flip), "checksum"),
        (Once(cut_short), "short"),
        (Once(lambda parcel: [parcel, parcel]), "double"),
        (Once(lambda parcel: []), ""),
        (Swap(), ""),
    ],
    ids=["flipped", "cut short", "doubled", "lost", "reordered"],
)
def test_kv_that_lies_is_noticed_counted_and_costs_no_token(
    line: tuple[Client, Relay], fault: Once | Swap, counted_as: str
) -> None:
    client, relay = line
    before = counted(client, MD, "pdd_kv_frames_dropped_total", reason=counted_as) if counted_as else 0
    relay.fault = fault
    try:
        answer = Stream(client, prompt(300, seed=next(seeds)), 120, route="P-RLD-MD").right()
    finally:
        relay.fault = no_fault
    assert fault.happened and answer.speakers[-1][0] == "main_decode"
    if counted_as:
        assert counted(client, MD, "pdd_kv_frames_dropped_total", reason=counted_as) == before + 1
    until(lambda: not client.held())
