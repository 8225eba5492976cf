"""How a model writes tool calls in its text, told from its chat template. Each format is data.

A template that knows nothing of tools gets the default, with the tools told in a system message: ChatML models answer it as
Hermes and Qwen do.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is `begin`, a JSON object with "name" and `arguments`, `end`; `listed`: one `begin`, and then a list of objects.

    Without `begin`, an answer that starts with an object is a call.
    """

    begin: str
    end: str
    arguments: str = "arguments"
    listed: bool = False


HERMES = ToolFormat("<tool_call>", "</tool_call>")
MISTRAL = ToolFormat("[TOOL_CALLS]", "", listed=True)
LLAMA = ToolFormat("", "", arguments="parameters")


def format_of(template: str) -> ToolFormat:
    if MISTRAL.begin in template:
        return MISTRAL
    if HERMES.begin not in template and '"parameters": ' in template:
        return LLAMA
    return HERMES


def told(tools: Sequence[dict[str, Any]]) -> str:
    """For a template without tools: what a system message says of them."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        "You have tools. These are their signatures, one JSON object a line:\n"
        f"<tools>\n{lines}\n</tools>\n"
        "To use one, write its name and its arguments as a JSON object, like this:\n"
        f'{HERMES.begin}\n{{"name": "...", "arguments": {{...}}}}\n{HERMES.end}\n'
        "Write one such block for each call."
    )


def written(name: str, arguments: object) -> str:
    """A call in the default format, for a history that the template would drop."""
    call = json.dumps({"name": name, HERMES.arguments: arguments}, ensure_ascii=False)
    return f"{HERMES.begin}\n{call}\n{HERMES.end}"
