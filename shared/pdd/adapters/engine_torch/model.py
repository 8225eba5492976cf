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
        with torch.inference_mode():
            weights = Weights(model_dir, DTYPES[dtype], device)
            self._embedding = weights.take("model.embed_tokens.weight", shape.vocabulary, shape.hidden)
            self._layers = [Layer(index, shape, weights) for index in range(shape.layers)]
            self._norm = weights.take("model.norm.weight", shape.hidden)
            head = "lm_head.weight", shape.vocabulary, shape.hidden
            if shape.tied:
                weights.take_if_there(*head)  # a copy that some checkpoints carry
            self._head = Linear(self._embedding if shape.tied else weights.take(*head))
            weights.end()

    def logits(self, ids: list[int], attention: PagedAttention, tables: StepTables, rows: list[int]) -> Tensor:
        """Writes the KV of every id; logits [len(rows), vocabulary], float32, of the rows that are asked for."""
        x = embedding(torch.tensor(ids, device=self._device), self._embedding)
        step = Step(attention, tables, *self._rotary.angles(tables.positions))
        for layer in self._layers:
            x = layer(x, step)
        asked = x[torch.tensor(rows, dtype=torch.long, device=self._device)]
        return self._head(rms_norm(asked, asked.shape[1:], self._norm, self._eps)).float()
