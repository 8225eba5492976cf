"""Grammars of core/grammar.py, compiled by llguidance for one model's tokenizer.

A `Constraint` is one answer's place in its grammar. It is made from the text and the outputs so far, by whoever speaks next,
and the same text and outputs make the same constraint everywhere.
"""

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from ..core.errors import EngineError

log = logging.getLogger(__name__)

MOST_COMPILED = 64  # an agent's requests repeat their tools: the last grammars are kept
SILENT = 0


def limits() -> LLParserLimits:
    """One step may cost milliseconds, never seconds."""
    return LLParserLimits(
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


class GrammarError(EngineError):
    """The text is no grammar, or one that is too large."""


class Constraint:
    """`complete`: what is written may end here. `failed`: it does not fit, or the limits were reached; then nothing is allowed."""

    def __init__(self, matcher: LLMatcher, end: int) -> None:
        self._matcher = matcher
        self._end = end
        self.taken = 0

    def follow(self, outputs: Sequence[int], start: int = 0) -> None:
        """Outputs from `start` on, where all before are known; those taken already are passed over."""
        fresh = outputs[self.taken - start :]
        self.taken += len(fresh)
        if fresh and not self.failed:
            self._matcher.consume_tokens(list(fresh))

    @property
    def complete(self) -> bool:
        return not self.failed and self._matcher.is_accepting()

    @property
    def failed(self) -> bool:
        return self._matcher.is_error()

    def allowed(self) -> bytearray:
        """One bit for each token of the tokenizer, lowest first; end tokens have none, see `complete`."""
        bits = bytearray(self._matcher.compute_bitmask())
        bits[self._end >> 3] &= ~(1 << (self._end & 7))
        return bits


class Grammars:
    """Compiles for one tokenizer. Safe from any thread."""

    def __init__(self, tokenizer: str, end: int) -> None:
        """`tokenizer`: a tokenizer.json's content; `end`: any token that ends an answer. EngineError: llguidance cannot read it."""
        self.end = end
        try:
            self._tokenizer = LLTokenizer(tokenizer, eos_token=end)
        except Exception as error:  # the library raises nothing narrower
            raise EngineError(f"no grammars for this tokenizer: {error}") from error
        self._limits = limits()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def constraint(self, text: str) -> Constraint:
        """At the start of an answer. GrammarError: the text is none."""
        with self._lock:
            compiled = self._compiled.get(text)
            if compiled is not None:
                self._compiled.move_to_end(text)
        return Constraint((compiled or self._compile(text)).deep_copy(), self.end)

    def _compile(self, text: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, text, log_level=SILENT, limits=self._limits)
        if matcher.is_error():
            raise GrammarError(matcher.get_error())
        with self._lock:
            self._compiled[text] = matcher
            while len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
        return matcher


def grammars_of(model_dir: Path) -> Grammars | None:
    """For the tokenizer in a Hugging Face folder. None, and a line in the log, where that cannot be had: then answers are free."""
    try:
        return Grammars((model_dir / "tokenizer.json").read_text(encoding="utf-8"), _end_token(model_dir))
    except (OSError, ValueError, EngineError) as error:
        log.warning("no grammars for %s: %s", model_dir, error)
        return None


def _end_token(model_dir: Path) -> int:
    """ValueError where neither configuration names one."""
    for name in ("config.json", "generation_config.json"):
        file = model_dir / name
        ids = json.loads(file.read_bytes()).get("eos_token_id") if file.is_file() else None
        first = ids[0] if isinstance(ids, list) and ids else ids
        if isinstance(first, int):
            return first
    raise ValueError("config.json names no eos_token_id")
