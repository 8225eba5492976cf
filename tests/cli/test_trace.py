"""`pdd trace`: one request's waterfall, put together from what services of both sites remember."""

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import uvicorn
from typer.testing import CliRunner

from pdd.adapters.notes_otel import OtelNotes
from pdd.cli.main import app
from pdd.cli.processes import ProcessRecord, start_time
from pdd.cli.run_directory import Deployed, RunDirectory
from pdd.core.effects import Span
from pdd.runtime.health import Health, worker_app

TRACE = f"00-{'0af7651916cd43dd8448eb211c80319c'}-b7ad6b7169203331-01"
OTHER = f"00-{'1' * 32}-{'2' * 16}-01"
NAME = "mine-1"
INTERNAL = f"{NAME}-0123456789ab"


class StoppedClock:
    def now(self) -> float:
        return 1000.0

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        raise AssertionError("notes never wait")


def service(role: str, name: str, *spans: Span) -> OtelNotes:
    notes = OtelNotes(f"pdd-{role}", f"{name}#17", None, StoppedClock())
    for span in spans:
        notes.note(span)
    return notes


def span(
    name: str, start: float, stop: float, trace: str = TRACE, request: str = INTERNAL, **more: str | int | float
) -> Span:
    attributes = {"pdd.request": request} | {f"pdd.{key}": value for key, value in more.items()}
    return Span(name, trace, 1000 + start, 1000 + stop, tuple(attributes.items()))


def services() -> list[OtelNotes]:
    said = (("pdd.request", INTERNAL), ("pdd.route", "P-RLD-MD"), ("gen_ai.usage.input_tokens", 300))
    root = Span("request", TRACE, 1000.0, 1002.5, said, root=True)
    route = Span("route", TRACE, 1000.0, 1000.002, (("pdd.route", "P-RLD-MD"),))
    chunks = [span("prefill.chunk", 0.1 * (i + 2), 0.1 * (i + 3), upto=64 * i) for i in range(8)]
    strangers = [span("main", 0.0, 9.0, OTHER, "mine-12-0123456789ab"), span("main", 0.0, 9.0, OTHER, "other")]
    return [
        service("router", "router@a", route, root),
        service("prefill", "prefill-1@a", *chunks, span("prefill", 0.1, 1.0, prompt_tokens=300)),
        service("relay_decode", "relay-1@a", span("relay", 1.1, 1.6, tokens=30)),
        service("main_decode", "main-1@b", *strangers, span("main", 1.6, 2.5, tokens=40)),
    ]


@contextmanager
def serving(notes: OtelNotes) -> Iterator[int]:
    """Its port, of a real server in a thread."""
    sock = socket.create_server(("127.0.0.1", 0))
    serves = worker_app(Health("x"), notes.render, notes.spans_of)
    config = uvicorn.Config(serves, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield sock.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        sock.close()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A deployment of four services, and one that does not answer."""
    run = RunDirectory(tmp_path_factory.mktemp("run"))
    run.prepare()
    closed = socket.create_server(("127.0.0.1", 0))
    ports = [closed.getsockname()[1]]
    closed.close()
    with ExitStack() as opened:
        open_ports = [opened.enter_context(serving(notes)) for notes in services()]
        records = [
            ProcessRecord(f"s{i}", "a", os.getpid(), start_time(os.getpid()) or "", "", {"http": port})
            for i, port in enumerate([*ports, *open_ports])
        ]
        run.write(Deployed(processes=(*records, ProcessRecord("nats", "a", 1, "", "", {"nats": 1}))))
        yield run.path


def trace(run_dir: Path, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["trace", *words, "--run-dir", str(run_dir)], env={"COLUMNS": "160"})
    return done.exit_code, done.output


@pytest.mark.parametrize("name", [NAME, INTERNAL, f"chatcmpl-{INTERNAL}", TRACE[3:35]])
def test_every_service_of_both_sites_tells_its_part(run_dir: Path, name: str) -> None:
    status, shown = trace(run_dir, name)
    assert status == 0, shown
    order = re.findall(r"^(\S+@[ab]) +(\S+(?: x\d+)?)", shown, re.MULTILINE)
    assert order == [
        ("router@a", "request"),
        ("router@a", "route"),
        ("prefill-1@a", "prefill"),
        ("prefill-1@a", "prefill.chunk x8"),
        ("relay-1@a", "relay"),
        ("main-1@b", "main"),
    ]
    assert "P-RLD-MD" in shown and "2.50 s" in shown and "prompt_tokens=300" in shown and "9.00 s" not in shown


def test_bars_stand_where_the_time_went(run_dir: Path) -> None:
    lines = trace(run_dir, NAME)[1].splitlines()
    bars = {line.split()[1]: (line.index("━"), line.rindex("━")) for line in lines if "━" in line}
    assert bars["request"][0] == bars["route"][0] and abs(bars["request"][1] - bars["main"][1]) <= 1
    assert bars["prefill"][1] <= bars["relay"][0] < bars["relay"][1] <= bars["main"][0] + 1
    length = {name: stop - start + 1 for name, (start, stop) in bars.items()}
    assert length["request"] > 2 * length["main"] > 2 * length["relay"] > 2 * length["route"] == 2


def test_programs_get_the_spans(run_dir: Path) -> None:
    status, shown = trace(run_dir, NAME, "--json")
    spans = json.loads(shown)
    assert status == 0 and len(spans) == 13
    assert {one["instance"] for one in spans} == {"router@a#17", "prefill-1@a#17", "relay-1@a#17", "main-1@b#17"}


@pytest.mark.parametrize("name", ["mine", "nobody", "a/../b?x=1", "mine-1-0"])
def test_a_request_that_nobody_remembers_is_told_plainly(run_dir: Path, name: str) -> None:
    status, shown = trace(run_dir, name)
    assert status == 1 and "remembers" in shown and "Traceback" not in shown


def test_without_a_deployment_it_says_what_to_do(tmp_path: Path) -> None:
    status, shown = trace(tmp_path, NAME)
    assert status == 1 and "pdd up" in shown
