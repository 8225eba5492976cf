"""One model's text: tokenizer, chat template, end tokens and default sampling, read from its Hugging Face folder.

A chat prompt is rendered to text and encoded without adding special tokens (the template writes its own), so that no
prompt begins twice. A plain completion's text gets the tokenizer's special tokens.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from pdd.core.errors import SettingsError

from .detokenize import Detokenizer, TokenBytes, token_bytes, without_special
from .schema import ChatMessage
from .template import chat_unavailable, load_template, special_tokens
from .tool_format import format_of

DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class ModelText:
    """Thread-safe once built: encoding may run beside the event loop."""

    def __init__(self, folder: Path) -> None:
        """Raises SettingsError naming the file that is missing or wrong."""
        config = _read(folder / "config.json")
        generation = _read(folder / "generation_config.json", optional=True)
        tokenizer_config = _read(folder / "tokenizer_config.json", optional=True)
        try:
            self._tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the library raises nothing narrower
            raise SettingsError(f"{folder / 'tokenizer.json'}: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._template = load_template(folder, tokenizer_config)
        self.tool_format = format_of(self._template.source if self._template else "")
        self._bytes = token_bytes(self._tokenizer)
        self._shown = without_special(self._bytes, self._tokenizer)
        self._with_calls = self._marked()
        self._longest = max(map(len, self._bytes), default=1)
        self.vocab_size = max(int(config.get("vocab_size", 0)), len(self._bytes))
        self.max_context = int(config.get("max_position_embeddings", 0))
        self.end_ids = self._end_ids(config, generation, tokenizer_config)
        self.defaults: dict[str, Any] = {
            name: generation[name] for name in DEFAULTS if generation.get(name) is not None
        }

    def _marked(self) -> TokenBytes:
        """What is shown where tool calls are looked for: their mark too, though it may be a special token."""
        shown = list(self._shown)
        begin = self._tokenizer.token_to_id(self.tool_format.begin)
        if begin is not None:
            shown[begin] = self._bytes[begin]
        return shown

    def _end_ids(self, *configs: Mapping[str, Any]) -> tuple[int, ...]:
        """Everything that any of the model's files calls an end token, in order of mention."""
        found: dict[int, None] = {}
        for config in configs:
            ids = config.get("eos_token_id")
            for token in ids if isinstance(ids, list) else [ids]:
                if isinstance(token, int):
                    found[token] = None
            eos = special_tokens(config).get("eos_token")
            if eos is not None and (token := self._tokenizer.token_to_id(eos)) is not None:
                found[token] = None
        return tuple(found)

    def at_least(self, text: str) -> int:
        """A lower bound of the token count, for nothing: a huge prompt is refused before it is encoded."""
        return len(text) // self._longest

    def encode(self, text: str, *, special: bool) -> tuple[int, ...]:
        """A batch, though of one, since that lets other threads run meanwhile."""
        [encoded] = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return tuple(encoded.ids)

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Raises ApiError (400) where the template refuses, or where there is none."""
        if self._template is None:
            raise chat_unavailable()
        return self._template.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, options=options
        )

    def is_token(self, text: str) -> bool:
        return self._tokenizer.token_to_id(text) is not None

    def detokenizer(self, *, skip_special: bool = True, with_calls: bool = False) -> Detokenizer:
        """`with_calls`: the mark of a tool call is text, though it may be a special token."""
        if not skip_special:
            return Detokenizer(self._bytes)
        return Detokenizer(self._with_calls if with_calls else self._shown)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        whole = self.detokenizer(skip_special=skip_special)
        return whole.push(ids) + whole.flush()

    def bytes_of(self, token: int) -> bytes:
        """What one token adds to the text, shown or not; part of a character, perhaps."""
        return self._bytes[token] if token < len(self._bytes) else b""


def _read(file: Path, *, optional: bool = False) -> dict[str, Any]:
    try:
        read = orjson.loads(file.read_bytes())
    except FileNotFoundError:
        if optional:
            return {}
        raise SettingsError(f"{file}: not found") from None
    except (OSError, orjson.JSONDecodeError) as error:
        raise SettingsError(f"{file}: {error}") from error
    if not isinstance(read, dict):
        raise SettingsError(f"{file}: not an object")
    return read
