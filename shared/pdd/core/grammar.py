"""What an answer must spell, as one text: a grammar in llguidance's dialect of Lark. Text alone; adapters/grammar.py compiles it.

The text travels in `Sampling` and is all that does. A speaker's place in the grammar follows from the outputs so far.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

# Between two JSON tokens: enough for any indentation, and never a whole answer of line breaks.
WHITESPACE = "[ \\t\\n]{0,20}"
OPTIONS = "x-guidance"


def grammar(start: str, rules: Iterable[str] = ()) -> str:
    """`start` and `rules` are written with the functions below."""
    return "\n".join([f"start: {start}", *rules])


def literal(text: str) -> str:
    """Exactly this text. Special tokens that it spells are meant as such."""
    return json.dumps(text, ensure_ascii=False)


def json_value(schema: Mapping[str, Any] | bool, *, strict: bool = True) -> str:
    """A JSON value that the schema admits. Where not `strict`, keywords that cannot be enforced are passed over."""
    if schema is False:
        return "%json false"
    options = {"whitespace_pattern": WHITESPACE, "lenient": not strict}
    fields = {} if schema is True else dict(schema)
    return f"%json {json.dumps(fields | {OPTIONS: options}, ensure_ascii=False)}"


def any_object() -> str:
    return json_value({"type": "object"})


def one_of(texts: Iterable[str]) -> str:
    return " | ".join(map(literal, texts))


def matching(pattern: str) -> str:
    """A text that the whole of a regular expression matches."""
    escaped, after_backslash = [], False
    for char in pattern:
        if char == "\n":
            char = "n" if after_backslash else "\\n"
        elif char == "/" and not after_backslash:
            char = "\\/"
        escaped.append(char)
        after_backslash = char == "\\" and not after_backslash
    return f"/{''.join(escaped)}/"
