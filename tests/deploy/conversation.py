"""A client of the deployed API: the openai package, as any user's program has it."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from openai import OpenAI

PATIENCE_S = 120.0
ACROSS = "P-RLD-MD"


@dataclass
class Answer:
    """What a stream brought. `report`: how the request went, as the router tells it."""

    text: str = ""
    finish: str = ""
    chunks: int = 0
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def spoke(self) -> list[str]:
        return [role for role, _, _ in self.report["spoke"]]


@contextmanager
def client_of(api: str) -> Iterator[OpenAI]:
    with httpx.Client(trust_env=False, timeout=PATIENCE_S) as http:
        yield OpenAI(base_url=api, api_key="none", max_retries=0, http_client=http)


def ask(
    api: str,
    prompt: str,
    *,
    tokens: int,
    route: str = ACROSS,
    at: dict[int, Callable[[], object]] | None = None,
    headers: dict[str, str] | None = None,
) -> Answer:
    """One streamed answer. `at`: what to do when so many chunks have come."""
    told = {"x-pdd-report": "1", "x-pdd-route": route, **(headers or {})}
    answer, actions = Answer(), at or {}
    with client_of(api) as client:
        stream = client.chat.completions.create(
            model=model_of(client),
            messages=[{"role": "user", "content": prompt}],
            max_tokens=tokens,
            temperature=0,
            seed=7,
            stream=True,
            extra_headers=told,
        )
        for chunk in stream:
            _take(answer, json.loads(chunk.model_dump_json()))
            actions.get(answer.chunks, lambda: None)()
    return answer


def model_of(client: OpenAI) -> str:
    return client.models.list().data[0].id


def _take(answer: Answer, chunk: dict[str, Any]) -> None:
    answer.report = chunk.get("pdd") or answer.report
    for choice in chunk["choices"]:
        answer.text += choice["delta"].get("content") or ""
        answer.finish = choice["finish_reason"] or answer.finish
        answer.chunks += 1
