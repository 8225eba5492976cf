"""Token ids -> text, piece by piece, and the cut at a stop string.

Promises, whatever the split of the ids over calls: the pieces concatenated equal one decode of all ids; no piece shows
U+FFFD for a character whose bytes are still arriving, nor text that a stop string may still claim. Amortised O(1) per
character.
"""

import json
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from pdd.core.errors import SettingsError

TokenBytes = list[bytes]  # by token id; what each token adds to the text

_Utf8 = getincrementaldecoder("utf-8")


class Detokenizer:
    """Bytes are cut into characters only where a character ends."""

    def __init__(self, table: TokenBytes) -> None:
        self._table = table
        self._decoder = _Utf8(errors="replace")

    def push(self, ids: Sequence[int]) -> str:
        """The text that is certain now. Ids beyond the vocabulary (a padded embedding) have none."""
        table = self._table
        size = len(table)
        return self._decoder.decode(b"".join([table[token] if token < size else b"" for token in ids]))

    def flush(self) -> str:
        """At the end: U+FFFD for a character that was cut short, as one decode of all ids shows it."""
        return self._decoder.decode(b"", final=True)


class StopCut:
    """Cuts at the stop string that is complete first; of those complete at the same character, at the longest.

    One Knuth-Morris-Pratt automaton per stop string: the cut depends on the characters, never on how they arrived.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """What may be shown. After `found`, nothing more."""
        if self.found:
            return ""
        for position, char in enumerate(text):
            complete = 0
            for automaton in self._automata:
                if automaton.step(char):
                    complete = max(complete, len(automaton.stop))
            if complete:
                self.found = True
                shown = self._held + text[: position + 1]
                self._held = ""
                return shown[: len(shown) - complete]
        pending = self._held + text
        hold = max((automaton.matched for automaton in self._automata), default=0)
        self._held = pending[len(pending) - hold :]
        return pending[: len(pending) - hold]

    def flush(self) -> str:
        """At the end: what was held back was no stop string after all."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """`matched`: length of the longest suffix of the text so far that begins `stop`."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.matched = 0
        self._back = [0] * len(stop)  # longest proper border of stop[: i + 1]
        border = 0
        for i in range(1, len(stop)):
            while border and stop[i] != stop[border]:
                border = self._back[border - 1]
            border += stop[i] == stop[border]
            self._back[i] = border

    def step(self, char: str) -> bool:
        matched = self.matched
        while matched and self.stop[matched] != char:
            matched = self._back[matched - 1]
        if self.stop[matched] == char:
            matched += 1
        self.matched = matched
        return matched == len(self.stop)


# -- what each token adds to the text ---------------------------------------------------------------------------------


def token_bytes(tokenizer: Tokenizer) -> TokenBytes:
    """Special tokens included. Raises SettingsError for a decoder of neither family in use.

    These are byte-level BPE (GPT-2, Llama 3, Qwen), and SentencePiece with byte fallback (Llama 2, Mistral, Gemma),
    whose leading space is kept, since outputs continue a prompt.
    """
    state: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {"type": None}
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    kinds = {step["type"] for step in steps}
    if kinds == {"ByteLevel"}:
        piece = _byte_level
    elif "ByteFallback" in kinds and kinds <= {"ByteFallback", "Replace", "Fuse", "Strip"}:
        piece = _sentence_piece
    else:
        raise SettingsError(f"tokenizer.json: this decoder is not supported: {sorted(map(str, kinds))}")
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    table = [b""] * (max(vocabulary.values(), default=-1) + 1)
    for token, index in vocabulary.items():
        table[index] = token.encode() if token in added and piece is _sentence_piece else piece(token)
    return table


def without_special(table: TokenBytes, tokenizer: Tokenizer) -> TokenBytes:
    """Special tokens add nothing to what a client reads."""
    shown = list(table)
    for index, token in tokenizer.get_added_tokens_decoder().items():
        if token.special:
            shown[index] = b""
    return shown


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's reversible spelling of bytes: printable ones as themselves, the others from U+0100 on, in order."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return alphabet | {chr(256 + i): byte for i, byte in enumerate(others)}


_ALPHABET = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    """A token with any character outside the alphabet stands for itself."""
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()


def _sentence_piece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("▁", " ").encode()
