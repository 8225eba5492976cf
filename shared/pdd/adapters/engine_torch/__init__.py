"""The embedded engine: Hugging Face models of the Llama kind by transformers' classes, with our paged KV."""

from .factory import create_torch

__all__ = ["create_torch"]
