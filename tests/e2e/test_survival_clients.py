"""CASES 7 and 15, and a slow reader: what clients do to a deployment, and what it does when there are too many of them."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from pdd.cli.fleet import Line
from pdd.cli.line import change
from pdd.core.ids import Role
from tests.e2e.client import Client, hooks, until
from tests.e2e.conftest import serving
from tests.e2e.streams import QUICK, Stream, alive, baseline, counted, kill, mend, survivors
from tests.models import prompt

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

P, RLD, MD = "prefill-1", "relay_decode-1", "main_decode-1"
CAPACITY = 52
QUICK_MBIT = 200.0
LEAVING = 50  # at each of four points


@pytest.fixture(scope="module")
def shared(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    wanted = survivors(
        model,
        line=Line(QUICK_MBIT, 5.0),
        settings={"MAX_SEQUENCES": "64"},
        role_settings={Role.ROUTER: {"MAX_REQUESTS": str(CAPACITY)}},
    )
    yield from serving(wanted, tmp_path_factory.mktemp("clients"))


@pytest.fixture
def client(shared: Client) -> Iterator[Client]:
    mend(shared)
    yield shared
    change(shared.deployment.line_control, rate_mbit=QUICK_MBIT)
    mend(shared)


class Raw:
    """A streamed completion over a bare socket, read only when told to."""

    def __init__(self, client: Client, ids: list[int], max_tokens: int, *, fence: int, buffer: int = 0) -> None:
        host, _, port = client.deployment.router_url.removeprefix("http://").partition(":")
        self.socket = socket.socket()
        if buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self.socket.settimeout(30)
        self.socket.connect((host, int(port)))
        asked = {"prompt": ids, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        body = json.dumps(asked | {"stream": True, "logprobs": 0}).encode()
        told = {"host": host, "content-length": str(len(body))} | hooks("P-RLD-MD", fence)
        head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        self.socket.sendall(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
        self.received = b""

    def read_tokens(self, count: int) -> None:
        while self.received.count(b'"token_logprobs"') < count:
            piece = self.socket.recv(1 << 16)
            assert piece, self.received
            self.received += piece

    def read_all(self) -> None:
        while b"data: [DONE]\n\n" not in self.received:
            piece = self.socket.recv(1 << 16)
            assert piece, self.received[-1000:]
            self.received += piece

    def leave(self) -> None:
        self.socket.close()


def sockets_of(client: Client) -> int:
    pid = client.deployment.record("router").pid
    return sum(str(fd.readlink()).startswith("socket:") for fd in Path(f"/proc/{pid}/fd").iterdir())


def complaints(client: Client) -> str:
    """Stacks in the services' logs."""
    logs = [Path(record.log) for record in client.deployment.run.running()]
    return "\n".join(log.read_text() for log in logs if "Traceback" in log.read_text())


POINTS = {
    # prompt tokens, outputs, fence, tokens to read before leaving, Mbit/s
    "queued": (700, 50, 30, 0, QUICK_MBIT),
    "relay": (60, 400, 390, 3, QUICK_MBIT),
    "transfer": (150, 400, 390, 2, 4.0),
    "after": (60, 300, 4, 12, QUICK_MBIT),
}


@pytest.mark.parametrize("point", POINTS)
def test_fifty_clients_that_leave_at_once_leave_nothing_behind(client: Client, point: str) -> None:
    """CASE 7: 200 in all."""
    tokens, outputs, fence, read, rate_mbit = POINTS[point]
    change(client.deployment.line_control, rate_mbit=rate_mbit)
    sockets = sockets_of(client)
    seed = 100 * list(POINTS).index(point)
    leaving = [Raw(client, prompt(tokens, seed=seed + i), outputs, fence=fence) for i in range(LEAVING)]
    if read:
        for one in leaving:
            one.read_tokens(read)
    else:
        until(lambda: client.metric(P, "pdd_held_requests") == LEAVING)
    assert client.metric("router", "pdd_inflight_requests") > LEAVING / 2  # they are left in the middle
    for one in leaving:
        one.leave()
    until(lambda: not client.held(), seconds=float(QUICK["LEASE_S"]) + 5)
    until(lambda: not any(client.pages_taken().values()))  # what is cached is free to be taken
    until(lambda: sockets_of(client) <= sockets + 1)
    assert not complaints(client)
    Stream(client, prompt(80, seed=900 + seed), 20).right()


def test_a_client_that_reads_late_gets_everything_and_holds_up_nobody(client: Client) -> None:
    ids = prompt(100, seed=500)
    slow = Raw(client, ids, 600, fence=40, buffer=4096)
    ended = counted(client, "router", "pdd_requests_total", outcome="length")
    other = Stream(client, prompt(100, seed=501), 60)
    other.right()
    until(lambda: counted(client, "router", "pdd_requests_total", outcome="length") == ended + 2)
    until(lambda: not client.held())  # the fleet does not wait for the reader
    slow.read_all()
    shown = [
        json.loads(line.removeprefix(b"data: ")) for line in slow.received.splitlines() if line.startswith(b"data: {")
    ]
    slow.leave()
    assert shown[-1]["pdd"]["ids"] == baseline(ids, 600)
    assert sum(len(choice["logprobs"]["tokens"]) for e in shown for choice in e["choices"] if choice["logprobs"]) == 600


def test_beyond_capacity_a_request_is_refused_quickly_and_nobody_admitted_feels_it(client: Client) -> None:
    """CASE 15, first half."""
    prefilled = counted(client, P, "pdd_tokens_written_total", role="prefill")
    admitted = [Stream(client, prompt(60, seed=600 + i), 200, route="P-RLD-MD", fence=30) for i in range(CAPACITY)]
    until(lambda: client.metric("router", "pdd_inflight_requests") == CAPACITY)
    for i in range(8):
        before = time.monotonic()
        answer = client.post("/v1/completions", {"prompt": prompt(60, seed=700 + i), "max_tokens": 5})
        assert time.monotonic() - before < 1
        assert answer.status_code == 429
        assert float(answer.headers["retry-after"]) >= 1
        error = answer.json()["error"]
        assert error["code"] == "overloaded"
        assert {"message", "type", "param", "code"} <= error.keys()
    assert not all(stream.ended for stream in admitted)
    for stream in admitted:
        assert stream.right().report["epochs"] == 1
    assert counted(client, P, "pdd_tokens_written_total", role="prefill") == prefilled + CAPACITY
    Stream(client, prompt(60, seed=800), 10).right()


def test_without_workers_the_answer_is_503_until_one_comes(client: Client) -> None:
    """CASE 15, second half."""
    for name in (P, RLD, MD):
        kill(client.deployment, name)

    def asked() -> httpx.Response:
        return client.post("/v1/completions", {"prompt": prompt(60, seed=801), "max_tokens": 5})

    until(lambda: not any(alive(client, name) for name in (P, RLD, MD)))
    before = time.monotonic()
    answer = asked()
    assert time.monotonic() - before < 1
    assert answer.status_code == 503
    assert (answer.json()["error"]["code"], answer.headers["retry-after"]) == ("no_worker", "1")
    client.deployment.begin(MD)  # it can do everything alone
    until(lambda: asked().status_code == 200)
    assert Stream(client, prompt(60, seed=802), 10).right().speakers == [("main_decode", 0, 10)]
