"""Tools of one chat: which may be called, whether one must be, and the grammar that makes it so.

`auto` leaves the answer free, unless a tool is `strict` or the answer has a format of its own: then whatever is written fits.
`required` and a named function bind the whole answer to calls.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pdd.core.grammar import grammar, json_value, literal

from .errors import invalid
from .schema import ChatRequest, NamedTool, Tool
from .tool_format import ToolFormat

FREE_TEXT = r"/(.|\n)*/"
NO_OBJECT = r"/([^{ \t\n](.|\n)*)?/"  # where an object would be a call


@dataclass(frozen=True, slots=True)
class Tooling:
    """`must`: the answer is calls and nothing else. `many`: more than one call may be written."""

    format: ToolFormat
    tools: tuple[Tool, ...]
    must: bool
    many: bool

    def told(self) -> list[dict[str, Any]]:
        """For the template."""
        return [msgspec.to_builtins(tool) for tool in self.tools]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.function.name for tool in self.tools)

    @property
    def strict(self) -> bool:
        return any(tool.function.strict for tool in self.tools)

    def bound(self, answer: str, *, begin_is_a_token: bool) -> str:
        """The grammar of the whole answer; `answer` is the rule of its own format, empty where it has none. Empty: free."""
        calls, rules = self._calls(), self._rules()
        if self.must:
            return grammar(calls, rules)
        if answer:
            return grammar(f"{calls} | {answer}", rules)
        if not self.strict:
            return ""
        if not self.format.begin:
            return grammar(f"{calls} | FREE", [*rules, f"FREE: {NO_OBJECT}"])
        if begin_is_a_token:
            return grammar(f"(FREE {calls})* FREE", [*rules, f"FREE: {FREE_TEXT}"])
        lead = f"lead[lazy]: FREE {literal(self.format.begin)}"
        return grammar(f"(lead {self._after_begin()})* FREE", [*rules, lead, f"FREE: {FREE_TEXT}"])

    def _rules(self) -> list[str]:
        choices = " | ".join(f"call_{i}" for i in range(len(self.tools)))
        return [f"call: {choices}", *(self._call(i, tool) for i, tool in enumerate(self.tools))]

    def _call(self, i: int, tool: Tool) -> str:
        function = tool.function
        schema = {"type": "object"} | (function.parameters or {})
        head = f'{{"name": "{function.name}", "{self.format.arguments}": '
        return f"call_{i}: {literal(head)} {json_value(schema, strict=bool(function.strict))} {literal('}')}"

    def _calls(self) -> str:
        begin = self.format.begin
        if not begin:
            return "call"
        one = f"({literal(begin)} {self._after_begin()})"
        return f'{one} ("\\n" {one})*' if self.many and not self.format.listed else one

    def _after_begin(self) -> str:
        if self.format.listed:
            return f'"[" call {self._more()} "]"'
        return f'"\\n" call {literal(chr(10) + self.format.end)}'

    def _more(self) -> str:
        return '(", " call)*' if self.many else ""


def tooling_of(body: ChatRequest, form: ToolFormat) -> Tooling | None:
    """None where no tool may be called; then the model is told of none. Raises ApiError (400)."""
    tools, choice = body.tools or [], body.tool_choice
    _check_names(tools)
    if choice not in (None, "none", "auto") and not tools:
        raise invalid("tool_choice", "needs tools")
    if not tools or choice == "none":
        return None
    many = body.parallel_tool_calls is not False
    if isinstance(choice, NamedTool):
        name = choice.function.name
        tools = [tool for tool in tools if tool.function.name == name]
        if not tools:
            raise invalid("tool_choice", f"tools has no function {name!r}")
        return Tooling(form, tuple(tools), must=True, many=False)
    return Tooling(form, tuple(tools), must=choice == "required", many=many)


def _check_names(tools: Sequence[Tool]) -> None:
    seen: dict[str, None] = {}
    for i, tool in enumerate(tools):
        if tool.function.name in seen:
            raise invalid(f"tools[{i}].function.name", f"{tool.function.name!r} is there already")
        seen[tool.function.name] = None
