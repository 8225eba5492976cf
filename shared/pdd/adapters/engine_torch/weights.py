"""A model's tensors by name, out of one safetensors file or of shards, each read once and in the dtype that is asked for.

What a model's shape does not use is named too: a model with parts unknown here would else be served wrongly.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...core.errors import EngineError

WHOLE, SHARDED = "model.safetensors", "model.safetensors.index.json"
MADE_ANEW = "rotary_emb.inv_freq"  # some older models store what their config says already


class Weights:
    """Files are mapped while this lives, and every tensor is copied out: so none of their memory stays behind."""

    def __init__(self, model_dir: Path, dtype: torch.dtype, device: str) -> None:
        """EngineError: no weights, or a shard is missing or damaged."""
        self._dir, self._dtype, self._device = model_dir, dtype, device
        self._files = {}
        self._file_of: dict[str, str] = {}
        for name in _files(model_dir):
            try:
                file = self._files[name] = safe_open(model_dir / name, framework="pt", device="cpu")
            except (OSError, SafetensorError) as error:
                raise EngineError(f"cannot read {model_dir / name}: {error}") from error
            self._file_of |= dict.fromkeys(file.keys(), name)

    def has(self, name: str) -> bool:
        return name in self._file_of

    def take(self, name: str, *shape: int) -> Tensor:
        """EngineError where it is missing, taken before, of another shape, or no plain numbers."""
        file = self._file_of.pop(name, None)
        if file is None:
            raise EngineError(f"{self._dir} holds no weights {name!r}")
        tensor: Tensor = self._files[file].get_tensor(name)
        if tensor.shape != shape or not tensor.is_floating_point():
            found = f"{list(tensor.shape)} of {tensor.dtype}"
            raise EngineError(f"weights {name!r} in {self._dir / file} are {found}, not floats of {list(shape)}")
        return tensor.to(self._device, self._dtype, copy=True)

    def take_if_there(self, name: str, *shape: int) -> Tensor | None:
        return self.take(name, *shape) if self.has(name) else None

    def end(self) -> None:
        """EngineError where something was not taken: the model has parts that nobody here computes."""
        left = [name for name in self._file_of if not name.endswith(MADE_ANEW)]
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise EngineError(f"{self._dir} holds weights of unknown use: {', '.join(left[:3])}{more}")


def _files(model_dir: Path) -> list[str]:
    index = model_dir / SHARDED
    if not index.exists():
        return [WHOLE]
    try:
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"cannot read {index}: {error}") from error
