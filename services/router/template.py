"""The model's own chat template: messages in, prompt text out, to the character what Hugging Face renders.

Templates belong to a model folder; they run in Jinja's immutable sandbox. What one refuses is the client's error.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .errors import ApiError, invalid
from .schema import ChatMessage, ToolCall
from .tool_format import told, written

TEXT_PARTS = ("text", "input_text", "output_text")
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant wrote, for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own convention)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML; models were trained on plain JSON."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class ChatTemplate:
    """`special` holds the tokens that templates may name, such as `bos_token`."""

    def __init__(self, source: str, special: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self.source = source
        self._template = environment.from_string(source)
        self._special = dict(special)
        self._knows_developer = "developer" in source
        self._knows_calls = "tool_calls" in source
        self._knows_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        """Raises ApiError (400) where the messages do not fit the template. One that knows no tools is told of them as text."""
        plain = [self._plain(message, f"messages[{i}]") for i, message in enumerate(messages)]
        if tools and not self._knows_tools:
            plain, tools = _with_tools(plain, tools), None
        context = {**self._special, "documents": None, **(options or {}), "tools": tools or None}
        try:
            return self._template.render({**context, "messages": plain, "add_generation_prompt": add_generation_prompt})
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise invalid("messages", f"the model's chat template refuses them: {error}") from error

    def _plain(self, message: ChatMessage, where: str) -> dict[str, Any]:
        role = message.role
        if role == "developer" and not self._knows_developer:
            role = "system"
        plain: dict[str, Any] = {"role": role, "content": _content(message, where)}
        for name in ("name", "tool_call_id", "reasoning_content"):
            if (value := getattr(message, name)) is not None:
                plain[name] = value
        calls = [_tool_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(message.tool_calls or [])]
        if calls and self._knows_calls:
            plain["tool_calls"] = calls
        elif calls:
            said = [plain["content"]] if plain["content"] else []
            plain["content"] = "\n".join([*said, *(written(**call["function"]) for call in calls)])
        return plain


def _with_tools(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the system message that is there, or in one of its own."""
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{told(tools)}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": told(tools)}, *messages]


def _content(message: ChatMessage, where: str) -> str:
    """Text parts are joined by line breaks, as vLLM does for templates that take a string."""
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        if message.role != "assistant":
            raise invalid(f"{where}.content", f"a {message.role} message needs a text")
        return ""
    texts = []
    for i, part in enumerate(content):
        if part.type not in (*TEXT_PARTS, "refusal"):
            raise invalid(f"{where}.content[{i}].type", f"only text parts are supported, got {part.type!r}")
        text = part.refusal if part.type == "refusal" else part.text
        if text is None:
            raise invalid(f"{where}.content[{i}].text", "a text part needs a text")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: ToolCall, where: str) -> dict[str, Any]:
    """Templates want the arguments as an object; OpenAI's clients send them as JSON in a string."""
    try:
        arguments = orjson.loads(call.function.arguments or "{}")
    except orjson.JSONDecodeError:
        raise invalid(f"{where}.function.arguments", "not valid JSON") from None
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


def load_template(folder: Path, config: Mapping[str, Any]) -> ChatTemplate | None:
    """`chat_template.jinja` if there is one, else tokenizer_config.json's ("default" among several); None: no chat."""
    source: Any = config.get("chat_template")
    file = folder / "chat_template.jinja"
    if file.is_file():
        source = file.read_text(encoding="utf-8")
    if isinstance(source, list):
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    if not source:
        return None
    return ChatTemplate(source, special_tokens(config))


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Written as a string, or as an object with its content, or null."""
    found = {}
    for name in SPECIAL_TOKENS:
        value = config.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def chat_unavailable() -> ApiError:
    return ApiError(
        "This model has no chat template; use /v1/completions.", param="messages", code="unsupported_parameter"
    )
