"""The demo model's KV of running text, in the canonical layout that crosses: [layers, tokens, K and V, heads, head_dim]."""

from functools import cache
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pdd.runtime.settings import LocalSettings, read_settings

from .pair import ROOT

TEXT = "docs"
TOKENS = 1024


@cache
def chunks(dtype: str, tokens: int) -> list[bytes]:
    """Chunks of so many tokens; empty where the demo model has not been made."""
    folder = next(iter(sorted(read_settings(LocalSettings).cache_dir.glob("*/config.json"))), None)
    if folder is None:
        return []
    torch.set_num_threads(1)
    ids = AutoTokenizer.from_pretrained(folder.parent)(_text(), return_tensors="pt").input_ids[:, :TOKENS]
    model = AutoModelForCausalLM.from_pretrained(folder.parent, dtype=getattr(torch, dtype)).eval()
    with torch.inference_mode():
        cache = model(ids, use_cache=True).past_key_values
    layers = [torch.stack((one.keys[0], one.values[0])).permute(2, 0, 1, 3) for one in cache.layers]
    whole = torch.stack(layers)
    parts = [whole[:, at : at + tokens].contiguous() for at in range(0, whole.shape[1] - tokens + 1, tokens)]
    return [part.view(torch.uint8).numpy().tobytes() for part in parts]


def _text() -> str:
    texts = [path.read_text() for path in sorted((ROOT / TEXT).rglob("*.md"))] or [Path(__file__).read_text() * 20]
    return "\n".join(texts)[: 8 * TOKENS]
