"""A model's folder in which every token has a text of its own, so that each is seen when it is written.

A tokenizer of bytes holds a token back until its character is whole, which is no part of what is compared here.
"""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models

from tests.models import SPECIAL, VOCABULARY, make_tiny_model


def make_spoken_model(folder: Path) -> Path:
    """The tests' tiny model with one printed word for each id."""
    make_tiny_model(folder)
    words = [*SPECIAL, *(f"Ġw{number}" for number in range(len(SPECIAL), VOCABULARY))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=words[-1]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
