"""The server under load: any that speaks OpenAI's API. What it takes is asked once, before anything is measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import httpx

from pdd.core.errors import PddError

from .words import Words

PROBE_IDS = (101, 102, 103)  # inside any vocabulary


class TargetError(PddError):
    """The target cannot be measured; the message says why."""


class PromptKind(StrEnum):
    AUTO = "auto"
    IDS = "ids"  # /v1/completions with token ids: exact lengths and prefixes
    TEXT = "text"  # /v1/completions with words
    CHAT = "chat"  # /v1/chat/completions with one user message


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    model: str
    kind: PromptKind
    exact_length: bool  # may be told to write exactly so many tokens (ignore_eos, min_tokens)
    words: Words

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.kind is PromptKind.CHAT else "/v1/completions"

    def body(self, ids: Sequence[int], outputs: int, max_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": max_tokens or outputs,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.exact_length:
            body |= {"ignore_eos": True, "min_tokens": outputs, "max_tokens": outputs}
        if self.kind is PromptKind.CHAT:
            return body | {"messages": [{"role": "user", "content": self.words.text(ids)}]}
        return body | {"prompt": list(ids) if self.kind is PromptKind.IDS else self.words.text(ids)}


async def find_target(
    client: httpx.AsyncClient, url: str, model: str, kind: PromptKind, *, exact_length: bool
) -> Target:
    """Raises TargetError where nothing there can be measured."""
    model = model or await _first_model(client, url)
    kinds = list(PromptKind)[1:] if kind is PromptKind.AUTO else [kind]
    problems = []
    for one in kinds:
        target = Target(url, model, one, exact_length, Words())
        problem = await _problem(client, target)
        if problem is None:
            return target
        problems.append(f"{one}: {problem}")
    raise TargetError(f"{url} does not answer a small request ({'; '.join(problems)})")


async def _first_model(client: httpx.AsyncClient, url: str) -> str:
    try:
        answer = await client.get(f"{url}/v1/models")
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except httpx.HTTPStatusError as error:
        raise TargetError(
            f"{url}/v1/models answers {error.response.status_code}: is this an OpenAI-compatible server?"
        ) from error
    except httpx.HTTPError as error:
        raise TargetError(f"nothing answers at {url}: {type(error).__name__} {error}".strip()) from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise TargetError(f"{url}/v1/models does not list a model: is this an OpenAI-compatible server?") from error


async def _problem(client: httpx.AsyncClient, target: Target) -> str | None:
    body = target.body(PROBE_IDS, 1, 1) | {"stream": False}
    del body["stream_options"]
    try:
        answer = await client.post(target.url + target.path, json=body)
    except httpx.HTTPError as error:
        return f"{type(error).__name__} {error}".strip()
    return None if answer.is_success else f"{answer.status_code} {answer.text[:200]}"
