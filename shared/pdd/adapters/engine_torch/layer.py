"""One layer of the Llama kind: normed attention, then a normed gated MLP, each added to the stream of rows."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from .attention import PagedAttention, StepTables
from .linear import Linear
from .rotary import turn
from .shape import ModelShape
from .weights import Weights


@dataclass(frozen=True, slots=True)
class Step:
    """What every layer of one step needs."""

    attention: PagedAttention
    tables: StepTables
    cos: Tensor
    sin: Tensor


class Layer:
    """Holds its weights, query, key and value as one matrix, gate and up as another."""

    def __init__(self, index: int, shape: ModelShape, weights: Weights) -> None:
        self._index, self._shape = index, shape
        at, d, inner, head_dim = f"model.layers.{index}.", shape.hidden, shape.inner, shape.head_dim
        queries, kv = shape.heads * head_dim, shape.kv_heads * head_dim

        def linear(inside: int, *outs: tuple[str, int]) -> Linear:
            matrices = [weights.take(f"{at}{name}.weight", out, inside) for name, out in outs]
            biases = [weights.take_if_there(f"{at}{name}.bias", out) for name, out in outs]
            there = [bias for bias in biases if bias is not None]
            if there and len(there) < len(biases):
                there = [m.new_zeros(len(m)) if b is None else b for m, b in zip(matrices, biases, strict=True)]
            return Linear(torch.cat(matrices), torch.cat(there) if there else None)

        self._norm = weights.take(f"{at}input_layernorm.weight", d)
        self._fused = linear(d, ("self_attn.q_proj", queries), ("self_attn.k_proj", kv), ("self_attn.v_proj", kv))
        self._query_norm = weights.take_if_there(f"{at}self_attn.q_norm.weight", head_dim)
        self._key_norm = weights.take_if_there(f"{at}self_attn.k_norm.weight", head_dim)
        self._out = linear(queries, ("self_attn.o_proj", d))
        self._mlp_norm = weights.take(f"{at}post_attention_layernorm.weight", d)
        self._gate_up = linear(d, ("mlp.gate_proj", inner), ("mlp.up_proj", inner))
        self._down = linear(inner, ("mlp.down_proj", d))

    @property
    def bytes(self) -> int:
        return sum(linear.bytes for linear in (self._fused, self._out, self._gate_up, self._down))

    def __call__(self, x: Tensor, step: Step) -> Tensor:
        """[rows, hidden] -> [rows, hidden]; `x` is changed."""
        fused = self._project(x, step)
        return self._finish(x, step.attention(self._index, fused, step.tables.queries))

    def last(self, x: Tensor, step: Step) -> Tensor:
        """The model's last layer: writes the KV of every row, and goes on with those that are asked for."""
        fused, tables = self._project(x, step), step.tables
        if tables.ends is None:
            return self._finish(x, step.attention(self._index, fused, tables.queries))
        if not len(tables.asked):
            return x[:0]
        return self._finish(x[tables.asked], step.attention(self._index, fused[tables.asked], tables.ends))

    def _project(self, x: Tensor, step: Step) -> Tensor:
        """Query, key and value heads of each row; keys and values are in their pages."""
        shape = self._shape
        fused = self._fused(rms_norm(x, x.shape[1:], self._norm, shape.eps)).view(len(x), -1, shape.head_dim)
        self._norm_heads(fused)
        turn(fused[:, : shape.heads + shape.kv_heads], step.cos, step.sin)
        step.attention.write(self._index, fused, step.tables)
        return fused

    def _finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x += self._out(attended)
        gate, up = self._gate_up(rms_norm(x, x.shape[1:], self._mlp_norm, self._shape.eps)).chunk(2, -1)
        x += self._down(silu(gate).mul_(up))
        return x

    def _norm_heads(self, fused: Tensor) -> None:
        """Where the model norms query and key heads (Qwen3)."""
        heads, kv_heads = self._shape.heads, self._shape.kv_heads
        for weight, part in (
            (self._query_norm, fused[:, :heads]),
            (self._key_norm, fused[:, heads : heads + kv_heads]),
        ):
            if weight is not None:
                part.copy_(rms_norm(part, part.shape[2:], weight, self._shape.eps))
