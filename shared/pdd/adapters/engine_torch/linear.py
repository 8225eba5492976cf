"""x W^T + b. On a CPU the weights are kept in oneDNN's own layout: decode reads them up to twice as fast as the plain one."""

import torch
from torch import Tensor
from torch.nn.functional import linear

# Weights of a matrix; a call of the packed operator costs 10 microseconds more, which smaller ones do not win back.
WORTH_PACKING = 1 << 17


class Linear:
    """`weight` [out, in]; whoever passes it should let it go: the packed layout is a copy."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._packed = weight.numel() >= WORTH_PACKING and can_pack(weight)
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self._packed else weight
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out]."""
        if not self._packed:
            return linear(x, self._weight, self._bias)
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out


def can_pack(weight: Tensor) -> bool:
    """The operators are those that torch itself uses for frozen models on a CPU."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    ops = torch.ops.mkldnn
    match weight.dtype:
        case torch.float32:
            return True
        case torch.bfloat16:
            return bool(ops._is_mkldnn_bf16_supported())
        case torch.float16:
            return bool(ops._is_mkldnn_fp16_supported())
    return False
