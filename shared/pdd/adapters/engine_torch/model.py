"""The model: weights from safetensors, the forward pass of the Llama kind over paged KV. Refuses, by name, what that cannot serve.

The pass is our own, because a step's time on a CPU goes into what transformers' classes do between the matrix products; its results
are held against theirs by the tests.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm
from transformers import AutoConfig

from ...core.errors import EngineError
from .attention import PagedAttention, StepTables
from .layer import Layer, Step
from .linear import Linear
from .pages import DTYPES
from .rotary import Rotary
from .shape import model_shape
from .weights import Weights


class PagedModel:
    """`max_context`: as asked for, or, where that is 0, the most that the model knows positions for."""

    def __init__(self, model_dir: Path, dtype: str, device: str, max_context: int = 0) -> None:
        """EngineError: no such model, or one that this is not the forward pass of, or with a shorter context."""
        if dtype not in DTYPES:
            raise EngineError(f"dtype {dtype!r} is none of {', '.join(DTYPES)}")
        try:
            config = AutoConfig.from_pretrained(model_dir, local_files_only=True)
        except (OSError, ValueError) as error:
            raise EngineError(f"cannot load a model from {model_dir}: {error}") from error
        shape = model_shape(config)
        if max_context > shape.context:
            raise EngineError(f"max_context {max_context} exceeds the {shape.context} tokens that the model attends to")
        self._rotary = Rotary(config, shape.head_dim, DTYPES[dtype], device)
        self._device, self._eps = device, shape.eps
        self.heads = shape.heads
        self.kv_shape = shape.kv(dtype)
        self.max_context = max_context or shape.context
        self._shape = shape
        with torch.inference_mode():
            weights = Weights(model_dir, DTYPES[dtype], device)
            self._embedding = weights.take("model.embed_tokens.weight", shape.vocabulary, shape.hidden)
            self._layers = [Layer(index, shape, weights) for index in range(shape.layers)]
            self._norm = weights.take("model.norm.weight", shape.hidden)
            head = weights.take_if_there("lm_head.weight", shape.vocabulary, shape.hidden)
            if head is None and not shape.tied:
                raise EngineError(f"{model_dir} holds no weights 'lm_head.weight'")
            self._head = Linear(self._embedding if head is None else head)
            weights.end()
        self.bytes = self._embedding.nbytes + self._head.bytes + sum(layer.bytes for layer in self._layers)

    def step_bytes(self, rows: int, sampled: int) -> int:
        """What one step works with at most, about: the rows of one layer, twice, and logits as they come and in float32."""
        shape, item = self._shape, self._embedding.itemsize
        row = 4 * shape.hidden + (shape.heads + 2 * shape.kv_heads) * 2 * shape.head_dim + 4 * shape.inner
        return 2 * rows * row * item + 2 * sampled * shape.vocabulary * (item + 4)

    def logits(self, ids: list[int], attention: PagedAttention, tables: StepTables) -> Tensor:
        """Writes the KV of every id; logits [rows, vocabulary], float32, of the rows that `tables` asks for."""
        x = embedding(torch.tensor(ids, device=self._device), self._embedding)
        step = Step(attention, tables, *self._rotary.angles(tables.positions))
        for layer in self._layers[:-1]:
            x = layer(x, step)
        x = self._layers[-1].last(x, step)
        if not len(x):
            return x.new_empty(0, len(self._embedding), dtype=torch.float32)
        return self._head(rms_norm(x, x.shape[1:], self._norm, self._eps)).float()
