"""A checked body -> what the machine is asked: prompts as ids, and the sampling of each choice.

Limits count as OpenAI counts them: prompt and answer share the context, and a request that asks for more is refused, never cut.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pdd.core.sampling import Sampling

from .answer_form import Form, form_of
from .errors import ApiError, context_exceeded, invalid
from .schema import MAX_CHOICES, ChatRequest, CompletionRequest, Generation
from .text import ModelText
from .tools import Tooling, tooling_of

SEED_BITS = 63
INLINE_CHARS = 4_096  # a longer text is encoded beside the event loop

Ids = tuple[int, ...]


class Bound(NamedTuple):
    """What the answer must spell, and the field that asked for it. No grammar: free."""

    grammar: str = ""
    param: str = ""


FREE = Bound()


@dataclass(frozen=True, slots=True)
class Wanted:
    """`samplings[i]` belongs to prompt `i // n`. `echoes` is empty, or holds a text for each choice."""

    prompts: tuple[Ids, ...]
    n: int
    samplings: tuple[Sampling, ...]
    stops: tuple[str, ...]
    skip_special: bool
    stream: bool
    with_usage: bool
    cache_salt: str
    echoes: tuple[str, ...] = ()
    bound: Bound = FREE
    tooling: Tooling | None = None

    @property
    def prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))


async def chat_wanted(body: ChatRequest, model: ModelText, max_context: int) -> Wanted:
    if body.top_logprobs is not None and not body.logprobs:
        raise invalid("top_logprobs", "needs logprobs: true")
    tooling = tooling_of(body, model.tool_format)
    bound = _bound(form_of(body), tooling, model)
    tools = tooling.told() if tooling else None
    text = model.render(body.messages, tools=tools, options=body.chat_template_kwargs)
    ids = await encode(model, text, special=False, max_context=max_context, field="messages")
    logprobs = (body.top_logprobs or 0) if body.logprobs else -1
    wanted = _wanted(body, (ids,), body.limit, logprobs, model, max_context, bound)
    return replace(wanted, tooling=tooling)


async def completion_wanted(body: CompletionRequest, model: ModelText, max_context: int) -> Wanted:
    if body.echo and body.logprobs is not None:
        raise ApiError("echo: not supported together with logprobs", param="echo", code="unsupported_parameter")
    given, n = _prompts(body), body.n or 1
    if len(given) * n > MAX_CHOICES:
        raise invalid("n", f"prompts x n may be at most {MAX_CHOICES}, got {len(given) * n}")
    prompts = tuple([await _prompt_ids(prompt, body, model, max_context) for prompt in given])
    echoes: tuple[str, ...] = ()
    if body.echo:
        echoes = tuple(
            prompt if isinstance(prompt, str) else model.decode(prompt) for prompt in given for _ in range(n)
        )
    logprobs = -1 if body.logprobs is None else body.logprobs
    bound = _bound(form_of(body), None, model)
    wanted = _wanted(body, prompts, body.limit, logprobs, model, max_context, bound)
    return replace(wanted, echoes=echoes)


def _bound(form: Form, tooling: Tooling | None, model: ModelText) -> Bound:
    """The answer's own form, or tool calls, or either. Raises ApiError (400)."""
    if tooling is None:
        return Bound(form.grammar, form.param)
    if form.whole and not tooling.must:
        raise invalid(form.param, "not together with tools")
    grammar = tooling.bound(form.rule, begin_is_a_token=model.is_token(tooling.format.begin))
    return Bound(grammar, "tools" if tooling.must or not form.param else form.param)


async def encode(model: ModelText, text: str, *, special: bool, max_context: int, field: str = "prompt") -> Ids:
    """Raises ApiError (400) at once where the text cannot fit."""
    least = model.at_least(text)
    if least > max_context:
        raise context_exceeded(field, max_context, f"Your prompt has at least {least} tokens.")
    if len(text) <= INLINE_CHARS:
        return model.encode(text, special=special)
    return await asyncio.to_thread(model.encode, text, special=special)


def _prompts(body: CompletionRequest) -> list[str | list[int]]:
    """One text, one list of ids, or a list of either; not mixed within."""
    prompt = body.prompt
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt", "must not be empty")
    ids = [token for token in prompt if isinstance(token, int)]
    if len(ids) == len(prompt):
        return [ids]
    if ids:
        raise invalid("prompt", "mixes token ids with prompts")
    return [entry for entry in prompt if not isinstance(entry, int)]


async def _prompt_ids(prompt: str | list[int], body: CompletionRequest, model: ModelText, max_context: int) -> Ids:
    if isinstance(prompt, str):
        return await encode(model, prompt, special=body.add_special_tokens is not False, max_context=max_context)
    _check_ids("prompt", prompt, model)
    return tuple(prompt)


def _wanted(
    body: Generation,
    prompts: tuple[Ids, ...],
    limit: int | None,
    logprobs: int,
    model: ModelText,
    max_context: int,
    bound: Bound,
) -> Wanted:
    n = body.n or 1
    field = "messages" if isinstance(body, ChatRequest) else "prompt"
    return Wanted(
        prompts=prompts,
        n=n,
        samplings=tuple(
            _sampling(body, _room(prompt, limit, max_context, field), logprobs, _seed(body, i), model, bound)
            for prompt in prompts
            for i in range(n)
        ),
        stops=_stops(body),
        skip_special=body.skip_special_tokens is not False,
        stream=bool(body.stream),
        with_usage=bool(body.stream_options and body.stream_options.include_usage),
        cache_salt=body.cache_salt or "",
        bound=bound,
    )


def _room(prompt: Ids, limit: int | None, max_context: int, field: str) -> int:
    """How many tokens may be written after the prompt, which came in `field`."""
    if not prompt:
        raise invalid(field, "must not be empty")
    room = max_context - len(prompt)
    if room < 1:
        raise context_exceeded(field, max_context, f"Your prompt has {len(prompt)} tokens.")
    if limit is not None and limit > room:
        raise context_exceeded(
            "max_tokens",
            max_context,
            f"Your prompt has {len(prompt)} tokens and you asked for {limit} more; at most {room} are left for the answer.",
        )
    return limit or room


def _seed(body: Generation, i: int) -> int:
    """A given seed's choices follow each other; without one every choice draws its own, here and for good."""
    if body.seed is None:
        return secrets.randbits(SEED_BITS)
    return (body.seed + i) % (1 << SEED_BITS)


def _stops(body: Generation) -> tuple[str, ...]:
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def _sampling(body: Generation, max_tokens: int, logprobs: int, seed: int, model: ModelText, bound: Bound) -> Sampling:
    min_tokens = body.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid("min_tokens", f"may be at most max_tokens ({max_tokens}), got {min_tokens}")
    bias = body.logit_bias or {}
    _check_ids("logit_bias", bias, model)
    stop_ids = tuple(body.stop_token_ids or ())
    _check_ids("stop_token_ids", stop_ids, model)
    if body.ignore_eos and bound.grammar:
        raise invalid("ignore_eos", f"not together with {bound.param}: the answer ends where its grammar does")
    ends = () if body.ignore_eos else model.end_ids
    default = model.defaults.get
    return Sampling(
        max_tokens=max_tokens,
        seed=seed,
        temperature=_first(body.temperature, default("temperature"), 1.0),
        top_p=_first(body.top_p, default("top_p"), 1.0),
        top_k=max(0, int(_first(body.top_k, default("top_k"), 0))),
        min_p=_first(body.min_p, default("min_p"), 0.0),
        repetition_penalty=_first(body.repetition_penalty, default("repetition_penalty"), 1.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=bias,
        min_tokens=min_tokens,
        stop_token_ids=tuple(dict.fromkeys(ends + stop_ids)),
        logprobs=logprobs,
        grammar=bound.grammar,
    )


def _first(*values: float | None) -> float:
    """The client's word, else the model's, else OpenAI's default."""
    return next(float(value) for value in values if value is not None)


def _check_ids(name: str, ids: Sequence[int] | dict[int, float], model: ModelText) -> None:
    worst = max(ids, default=0)
    if worst >= model.vocab_size:
        raise invalid(name, f"token ids must be below {model.vocab_size}, the size of the vocabulary; got {worst}")
