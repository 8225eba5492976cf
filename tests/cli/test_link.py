"""`pdd link`: what senders measure of the line and what receivers refuse, read from real metrics pages of real links."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
from typer.testing import CliRunner

from pdd.adapters.kv_tcp import TcpKvLink
from pdd.adapters.kv_tcp_socket import TcpOptions
from pdd.adapters.notes_otel import OtelNotes
from pdd.cli.main import app
from pdd.core.events import KvCloseAcked
from pdd.runtime.health import Health, worker_app
from tests.contract.kv_bench import SHAPE, End, Monotonic, TcpBench, ends
from tests.worker_page import serving


class StoppedClock:
    def now(self) -> float:
        return 1000.0

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        raise AssertionError("notes never wait")


class Sites(TcpBench):
    """A sender and a receiver that note as services do."""

    def __init__(self) -> None:
        self.sender, self.receiver = ends(SHAPE)
        self.otel = [OtelNotes("pdd-x", name, None, StoppedClock()) for name in ("p", "md")]
        for end, notes in zip((self.sender, self.receiver), self.otel, strict=True):
            end.link = self._link(end, notes)
        self.address = self._at(self.receiver).address  # type: ignore[attr-defined]

    def _link(self, end: End, notes: OtelNotes) -> TcpKvLink:
        link = TcpKvLink(
            end.peer, listen=("127.0.0.1", 0), fingerprint="f", source=end.pages, sink=end.sink, notes=notes,
            clock=Monotonic(), staging_bytes=1 << 24, options=TcpOptions(connect_s=2, silence_s=2),
        )  # fmt: skip
        link.start()
        return link


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    """Of a sender and a receiver between which something has crossed, and something was refused."""
    sites = Sites()
    with ExitStack() as stack:
        for end in (sites.sender, sites.receiver):
            assert isinstance(end.link, TcpKvLink)
            stack.enter_context(closing(end.link))
        sites.expect(0, 2000)
        sites.open()
        sites.offer(0, 2000)
        sites.finish()
        sites.until_event(sites.sender, KvCloseAcked)
        sites.open(secret=b"wrong")
        sites.until(lambda: b'reason="secret"' in sites.otel[1].render())
        yield [
            stack.enter_context(serving(worker_app(Health("x"), notes.render, notes.spans_of))) for notes in sites.otel
        ]


def at(addresses: list[str], *more: str) -> list[str]:
    return ["link", *(word for one in addresses for word in ("--at", one)), *more]


def test_programs_get_every_figure(addresses: list[str]) -> None:
    result = CliRunner().invoke(app, at(addresses, "--json"))
    seen = json.loads(result.stdout)
    [way] = seen["ways"]
    assert (way["sender"], way["site"]) == (addresses[0], "b")
    assert way["bytes_per_s"] > 0 and way["rtt_s"] > 0 and way["streams"] >= 1 and way["packed"] == 1.0
    [receiver] = seen["receivers"]
    assert receiver["name"] == addresses[1] and receiver["dropped"] == {"secret": 1.0} and seen["silent"] == []


def test_people_get_a_table_and_hear_who_does_not_answer(addresses: list[str]) -> None:
    result = CliRunner().invoke(app, at([*addresses, "127.0.0.1:1"], "--once"), env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    for word in ("Mbit/s", "rtt ms", "free", "secret 1", "no answer from 127.0.0.1:1"):
        assert word in result.stdout


def test_without_a_deployment_it_says_what_to_do(tmp_path: object) -> None:
    result = CliRunner().invoke(app, ["link", "--once", "--run-dir", str(tmp_path)])
    assert result.exit_code == 1 and "pdd up" in result.stdout
