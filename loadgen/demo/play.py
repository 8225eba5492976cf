"""Play the script against a router, as any client would: the openai package, streaming, one request at a time."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import httpx
from openai import DefaultHttpxClient, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from .script import MAX_TOKENS, SYSTEM, Turn

REPORT = {"x-pdd-report": "1"}
PATIENCE_S = 120.0

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Played:
    """One request and its answer. `report` is the server's own account: see RequestReport in pdd/core/effects.py."""

    turn: Turn
    number_in_conversation: int
    prompt_ids: list[int]
    text: str
    finish: str
    report: dict[str, Any]

    @property
    def ids(self) -> list[int]:
        return list(self.report["ids"])

    @property
    def token_at_s(self) -> list[float]:
        return list(self.report["token_at_s"])

    @property
    def gaps(self) -> list[float]:
        """Seconds before token 1, 2, ..."""
        at = self.token_at_s
        return [later - earlier for earlier, later in pairwise(at)]

    def hit(self, role: str) -> int:
        return int(self.report["hit"].get(role, 0))

    def bytes_over_line(self) -> int:
        return sum(int(transfer["bytes"]) for transfer in self.report["transfers"] if transfer["way"] == "wan")


class Stage:
    """A router to play at, and what was said there so far."""

    def __init__(self, router_url: str) -> None:
        self._url = router_url
        self._client = OpenAI(
            base_url=f"{router_url}/v1",
            api_key="none",
            max_retries=0,
            timeout=PATIENCE_S,
            http_client=DefaultHttpxClient(trust_env=False),
        )
        self.model = self._client.models.list().data[0].id
        self._histories: dict[str, list[Message]] = defaultdict(lambda: [{"role": "system", "content": SYSTEM}])

    def play(self, turns: tuple[Turn, ...]) -> Iterator[Played]:
        """Each as soon as it was answered; answers become history."""
        for turn in turns:
            history = self._histories[turn.conversation]
            history.append({"role": "user", "content": turn.content})
            prompt_ids = self.tokenize(history)
            text, finish, report = self._ask(history, MAX_TOKENS)
            history.append({"role": "assistant", "content": text})
            number = sum(message["role"] == "assistant" for message in history)
            yield Played(turn, number, prompt_ids, text, finish, report)

    def warm_up(self, text: str) -> None:
        """One request that shares nothing with the script, so that the workers know their own pace."""
        self._ask([{"role": "user", "content": text}], 12)

    def tokenize(self, messages: list[Message]) -> list[int]:
        answer = httpx.post(
            f"{self._url}/tokenize", json={"messages": messages}, timeout=PATIENCE_S, trust_env=False
        ).raise_for_status()
        return list(answer.json()["tokens"])

    def status(self) -> dict[str, Any]:
        answer = httpx.get(f"{self._url}/status", timeout=PATIENCE_S, trust_env=False).raise_for_status()
        return dict(answer.json())

    def _ask(self, messages: list[Message], max_tokens: int) -> tuple[str, str, dict[str, Any]]:
        text, finish = "", ""
        report: dict[str, Any] = {}
        stream = self._client.chat.completions.create(
            model=self.model,
            messages=cast(list[ChatCompletionMessageParam], messages),
            max_completion_tokens=max_tokens,
            temperature=0,
            stream=True,
            extra_headers=REPORT,
        )
        for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
            report = (chunk.model_extra or {}).get("pdd", report)
        return text, finish, report
