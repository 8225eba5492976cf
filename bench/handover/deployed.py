"""A deployment on this machine for a measurement, and requests to it over bare sockets: a client that costs little."""

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pdd.cli.deployment import Deployment, router_status
from pdd.cli.fleet import ROUTER, Engine, Fleet, Line
from pdd.cli.run_directory import RunDirectory
from tests.models import make_tiny_model

PATIENCE_S = 120.0


@contextmanager
def deployed(engine: Engine, line: Line, **settings: str) -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="pdd-bench-") as folder:
        model = make_tiny_model(Path(folder) / "tiny")
        told = {"TEST_HOOKS": "true", "MAX_SEQUENCES": "64", "PAGES": "4096", "MAX_CONTEXT": "4096"} | settings
        fleet = Fleet(model_dir=model, engine=engine, router_port=0, line=line, settings=told)
        with Deployment(fleet, RunDirectory(Path(folder) / "run")) as deployment:
            yield deployment


def with_policy(deployment: Deployment, policy: str) -> None:
    """A new router in the place of the old one; the workers stay."""
    part = next(part for part in deployment.parts if part.name == ROUTER)
    part.env["PDD_POLICY"] = policy
    deployment.end(ROUTER)
    deployment.begin(ROUTER)
    until = time.monotonic() + PATIENCE_S
    while not _heard(deployment):
        if time.monotonic() > until:
            raise TimeoutError("the router does not hear its workers")
        time.sleep(0.1)


def _heard(deployment: Deployment) -> bool:
    status = router_status(deployment.router_url.removeprefix("http://"))
    alive = [worker for worker in (status or {"workers": []})["workers"] if worker["alive"]]
    return len(alive) == sum(deployment.fleet.workers.values()) + 1  # and the index


async def ask(router: str, prompt: list[int], outputs: int, *, stream: bool, route: str) -> bytes:
    """The whole answer, as it came."""
    host, _, port = router.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 20)
    asked = {"prompt": prompt, "max_tokens": outputs, "temperature": 0, "ignore_eos": True, "stream": stream}
    body = json.dumps(asked).encode()
    told = {"host": host, "content-length": len(body), "connection": "close", "x-pdd-route": route, "x-pdd-report": 1}
    head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
    writer.write(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read(-1)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer[:500]
    return answer


async def report(router: str, prompt: list[int], outputs: int, route: str) -> dict[str, Any]:
    """How a request went, as the router saw it."""
    answer = await ask(router, prompt, outputs, stream=False, route=route)
    return dict(json.loads(answer.partition(b"\r\n\r\n")[2])["pdd"])
