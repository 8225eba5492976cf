"""A client of a running deployment, as tests need one: completions by token ids, with the server's own report."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from pdd.cli.deployment import Deployment, router_status

PATIENCE_S = 60.0
HELD = ("pdd_held_requests", "pdd_staging_bytes", "pdd_inflight_requests")


@dataclass(frozen=True, slots=True)
class Answer:
    ids: list[int]
    text: str
    finish: str
    usage: dict[str, Any]
    report: dict[str, Any]

    @property
    def speakers(self) -> list[tuple[str, int, int]]:
        return [tuple(part) for part in self.report["spoke"]]

    def hit(self, role: str) -> int:
        return int(self.report["hit"].get(role, 0))


class Client:
    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.http = httpx.Client(base_url=deployment.router_url, timeout=PATIENCE_S, trust_env=False)

    def complete(
        self, prompt: list[int], max_tokens: int, *, route: str = "", fence: int = 0, **fields: object
    ) -> Answer:
        """Greedy and without an end token, unless `fields` say otherwise."""
        asked = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True} | fields
        answer = self.http.post("/v1/completions", json=asked, headers=hooks(route, fence))
        assert answer.status_code == 200, answer.text
        return answer_of(answer.json())

    def post(self, path: str, body: dict[str, object], **headers: str) -> httpx.Response:
        return self.http.post(path, json=body, headers=headers)

    def metric(self, part: str, name: str) -> float:
        """The sum over all label sets of one process."""
        port = self.deployment.record(part).ports["http"]
        text = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S, trust_env=False).text
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE))

    def held(self) -> dict[str, float]:
        """What any living process of the deployment still holds for anybody, by process and gauge."""
        services = [record.name for record in self.deployment.run.running() if "http" in record.ports]
        counted = {(name, gauge): self.metric(name, gauge) for name in services for gauge in HELD}
        return {f"{name} {gauge}": value for (name, gauge), value in counted.items() if value}

    def pages_taken(self) -> dict[str, int]:
        status = router_status(self.deployment.router_url.removeprefix("http://"))
        assert status is not None
        return {
            worker["name"]: worker["pages"] - worker["pages_free"] for worker in status["workers"] if worker["pages"]
        }

    def close(self) -> None:
        self.http.close()


def hooks(route: str = "", fence: int = 0) -> dict[str, str]:
    asked = {"x-pdd-report": "1", "x-pdd-route": route, "x-pdd-handover-after": str(fence or "")}
    return {name: value for name, value in asked.items() if value}


def answer_of(body: dict[str, Any]) -> Answer:
    choice = body["choices"][0]
    return Answer(body["pdd"]["ids"], choice["text"], choice["finish_reason"], body["usage"], body["pdd"])


def until(holds: Callable[[], object], seconds: float = 20.0) -> None:
    """Look again and again, for at most `seconds`."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"did not come true within {seconds} s"
