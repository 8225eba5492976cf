"""Rotary positions: from a config to angles, and the turning of query and key heads by them."""

from typing import Any

import torch
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ...core.errors import EngineError

PLAIN = ("default", "linear", "llama3", "yarn")  # the others let one sequence's length change another's positions


class Rotary:
    def __init__(self, config: Any, head_dim: int, dtype: torch.dtype, device: str) -> None:
        """EngineError where positions are of a kind that `turn` does not serve."""
        kind = rope_kind(config)
        if kind == "default":
            theta = float(config.rope_parameters["rope_theta"])
            frequencies = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
            self._scale = 1.0
        else:
            frequencies, self._scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        if 2 * len(frequencies) != head_dim:
            raise EngineError(f"only {2 * len(frequencies)} of {head_dim} dimensions of a head have rotary positions")
        self._frequencies = frequencies.to(device)
        self._dtype = dtype

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [rows, 1, head_dim] for `positions` [rows]; sin has the sign of its half, as `turn` wants it."""
        angles = positions[:, None].float() * self._frequencies
        cos, sin = angles.cos() * self._scale, angles.sin() * self._scale
        both = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return both[0][:, None].to(self._dtype), both[1][:, None].to(self._dtype)


def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """heads [rows, heads, head_dim], in place: each pair (i, i + head_dim / 2) is turned by its angle."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    heads.mul_(cos).addcmul_(swapped, sin)


def rope_kind(config: Any) -> str:
    kind = str((config.rope_parameters or {}).get("rope_type", "default"))
    if kind not in PLAIN:
        raise EngineError(f"rotary positions of type {kind!r} are none of {', '.join(PLAIN)}")
    return kind
