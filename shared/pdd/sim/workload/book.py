"""Token ids without a tokenizer: passages of one long random text, cheap to cut, each begun by ids that no other passage begins with."""

from random import Random

LENGTH = 1 << 18
LOWEST, HIGHEST = 1000, 30_000  # inside every vocabulary we know of, past the special tokens at its start
SPREAD = 2654435761  # Knuth's multiplicative hash


class Book:
    """Passages by number: the same number, the same ids. Ids are shared objects, so a passage costs one pointer a token."""

    def __init__(self, seed: int = 0, lowest: int = LOWEST, highest: int = HIGHEST) -> None:
        if highest - lowest < 64:
            raise ValueError("a vocabulary of at least 64 ids is needed")
        self._words = tuple(range(lowest, highest))
        self._text = tuple(Random(f"book {seed}").choices(self._words, k=LENGTH))

    def passage(self, number: int, count: int) -> tuple[int, ...]:
        """`count` ids; the first three spell the number."""
        if number < 0:
            raise ValueError("passages are numbered from 0")
        words = self._words
        rest, third = divmod(number, len(words))
        second, first = rest % len(words), rest // len(words) % len(words)
        marks = (words[first], words[second], words[third])
        if count <= len(marks):
            return marks[len(marks) - count :]
        return marks + self._cut(number * SPREAD % LENGTH, count - len(marks))

    def _cut(self, at: int, count: int) -> tuple[int, ...]:
        text = self._text
        if at + count <= LENGTH:
            return text[at : at + count]
        parts = text[at:]
        while len(parts) < count:
            parts += text[: count - len(parts)]
        return parts
