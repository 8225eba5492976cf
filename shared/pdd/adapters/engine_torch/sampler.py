"""From a row of logits to a token: a pure function of the row, the request's `Sampling`, its ids, and the output index.

The one random number for output index i comes from (seed, i) alone, so whoever speaks next draws what the last one would have.
Order: logit_bias, min_tokens, penalties, the grammar's mask; then the best id (lowest wins a tie), or temperature, min_p, top_k,
top_p and a draw. Log probabilities are those of the untouched row.
"""

from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from ...core.sampling import Sampling, TokenLogprobs
from ...core.steps import Sampled, Slice
from .grammar import Masks


def sample_rows(logits: Tensor, slices: Sequence[Slice], masks: Masks | None = None) -> tuple[Sampled, ...]:
    """One row of `logits` [rows, vocabulary] for each slice. Plainly greedy rows cost one argmax together.

    `masks` is needed where a sequence has a grammar.
    """
    best = logits.argmax(dim=-1).tolist() if slices else []
    sampled = []
    for row, part in enumerate(slices):
        sequence, index = part.sequence, part.stop - part.sequence.prompt_len
        if plainly_greedy(sequence.sampling, index):
            sampled.append(Sampled(best[row]))
        else:
            allowed = None
            if sequence.sampling.grammar:
                assert masks is not None, "an engine without grammars opens no such sequence"
                allowed = masks.allowed(sequence, index, logits.shape[-1])
            sampled.append(draw(logits[row], sequence.sampling, sequence.ids, sequence.prompt_len, index, allowed))
    return tuple(sampled)


def plainly_greedy(sampling: Sampling, index: int) -> bool:
    return (
        sampling.temperature <= 0 and sampling.logprobs < 0 and not sampling.grammar and not _adjusts(sampling, index)
    )


def draw(
    logits: Tensor, sampling: Sampling, ids: list[int], prompt_len: int, index: int, allowed: Tensor | None = None
) -> Sampled:
    """Output `index` of a sequence with prompt ids[:prompt_len] and its earlier outputs after that; later ids are ignored.

    `allowed` [vocabulary]: what the grammar lets it write, at least one token.
    """
    raw = logits.float().cpu()
    adjusted = raw
    if _adjusts(sampling, index):
        adjusted = _adjust(raw, sampling, ids[: prompt_len + index], prompt_len, index)
    if allowed is not None:
        adjusted = _constrain(adjusted, raw, allowed)
    greedy = sampling.temperature <= 0
    token = int(adjusted.argmax()) if greedy else _pick(adjusted, sampling, uniform(sampling.seed, index))
    return Sampled(token, _logprobs(raw, token, sampling.logprobs))


def uniform(seed: int, index: int) -> float:
    """In [0, 1), the same on every machine."""
    digest = blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _adjusts(sampling: Sampling, index: int) -> bool:
    return bool(
        sampling.logit_bias
        or (index < sampling.min_tokens and sampling.stop_token_ids)
        or sampling.repetition_penalty != 1
        or sampling.presence_penalty
        or sampling.frequency_penalty
    )


def _adjust(raw: Tensor, sampling: Sampling, ids: list[int], prompt_len: int, index: int) -> Tensor:
    """Penalties as vLLM and OpenAI define them: repetition divides or multiplies, presence and frequency subtract."""
    logits = raw.clone()
    vocabulary = len(logits)
    for token, bias in sampling.logit_bias.items():
        if 0 <= token < vocabulary:
            logits[token] += bias
    if index < sampling.min_tokens:
        logits[[token for token in sampling.stop_token_ids if 0 <= token < vocabulary]] = -torch.inf
    if sampling.repetition_penalty != 1:
        seen = torch.unique(torch.tensor(ids))
        values = logits[seen]
        factor = sampling.repetition_penalty
        logits[seen] = torch.where(values > 0, values / factor, values * factor)
    if len(ids) > prompt_len and (sampling.presence_penalty or sampling.frequency_penalty):
        written, counts = torch.unique(torch.tensor(ids[prompt_len:]), return_counts=True)
        logits[written] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    return logits


def _constrain(adjusted: Tensor, raw: Tensor, allowed: Tensor) -> Tensor:
    """A grammar that has come to its end outweighs min_tokens."""
    constrained = adjusted.masked_fill(~allowed, -torch.inf)
    return raw.masked_fill(~allowed, -torch.inf) if bool(constrained.isneginf().all()) else constrained


def _pick(logits: Tensor, sampling: Sampling, chance: float) -> int:
    """Inverse CDF in the order of ids, so that noise in the last bits moves each border by as little."""
    best = logits.max()
    if not best.isfinite():  # a penalty's infinity, a model's NaN, nothing that is allowed: there is no distribution
        return int(logits.argmax())
    scaled = (logits.double() - best) / sampling.temperature
    weights = scaled.exp()  # relative to the best token's
    weights[weights < sampling.min_p] = 0
    if 0 < sampling.top_k < len(weights):
        weights[weights < weights.topk(sampling.top_k).values[-1]] = 0
    if sampling.top_p < 1:
        weights = _nucleus(weights, sampling.top_p)
    kept = weights.nonzero().squeeze(1)
    cumulated = weights[kept].cumsum(0)
    at = int(torch.searchsorted(cumulated, chance * cumulated[-1], right=True))
    return int(kept[min(at, len(kept) - 1)])


def _nucleus(weights: Tensor, top_p: float) -> Tensor:
    """Keeps the fewest best tokens that together reach `top_p`, at least one."""
    shares = weights / weights.sum()
    # Tokens below (1 - top_p) / vocabulary sum to less than 1 - top_p, so the nucleus lies above and little is left to sort.
    able = (shares >= 0.5 * (1 - top_p) / len(shares)).nonzero().squeeze(1)
    ordered, order = shares[able].sort(descending=True, stable=True)
    inside = ordered.cumsum(0) - ordered < top_p
    inside[0] = True
    best = able[order[inside]]
    return torch.zeros_like(weights).index_copy_(0, best, weights[best])


def _logprobs(raw: Tensor, token: int, count: int) -> TokenLogprobs | None:
    if count < 0:
        return None
    logprobs = raw.double().log_softmax(0)
    top: list[tuple[int, float]] = []
    if count:
        border = logprobs.topk(min(count, len(logprobs))).values[-1]
        able = (logprobs >= border).nonzero().squeeze(1).tolist()
        top = sorted(((i, float(logprobs[i])) for i in able), key=lambda pair: (-pair[1], pair[0]))[:count]
    return TokenLogprobs(float(logprobs[token]), tuple(top))
