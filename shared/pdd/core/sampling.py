"""What a request asks of the sampler: plain data that travels with it, and means the same at every speaker.

Every index counts from the original prompt's end, in every epoch, so a hand-over or a recovery changes no limit and no draw.
"""

import msgspec


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """`seed` is always set (the router draws one): the number for output index i is a function of (seed, i) alone."""

    max_tokens: int  # outputs in all, whoever writes them
    seed: int = 0
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and outputs
    presence_penalty: float = 0.0  # over outputs only
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0  # no end token before this many outputs
    stop_token_ids: tuple[int, ...] = ()  # the model's own end tokens included, unless ignore_eos
    logprobs: int = -1  # -1: none; k: the chosen token's and the k best
    grammar: str = ""  # what the outputs must spell, see core/grammar.py; rebuilt from the ids at every speaker


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Natural logarithms, of the model's distribution before temperature and cuts, as OpenAI and vLLM report them."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


class Finish(msgspec.Struct, frozen=True, array_like=True):
    """Why a speaker stopped for good: `stop` with the token that did it, or `length`."""

    reason: str
    stop_token: int | None = None
