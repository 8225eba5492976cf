"""What a client may ask, as data. Decoding checks every type and limit, and an error names the field and its limit.

Fields not listed here are ignored, as OpenAI-compatible servers do. Fields that change the answer in a way this server
cannot honour are listed in `UNSUPPORTED` with the values that ask for nothing; any other value is refused.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from .errors import ApiError, invalid

MAX_STOPS = 4  # as OpenAI's
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 128
MAX_BIASES = 1024
MAX_CHOICES = 16  # prompts x n of one request
MAX_TOP_LOGPROBS = 20
MAX_TOOLS = 128
MAX_WORDS = 1024  # of structured_outputs.choice

Count = Annotated[int, Meta(ge=1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Schema = dict[str, Any] | bool
FunctionName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_.-]{1,64}$")]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class JsonSchema(msgspec.Struct):
    """`strict`: a schema whose keywords cannot all be enforced is refused; else those are passed over."""

    name: str | None = None
    description: str | None = None
    schema: Schema | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct):
    """vLLM's name for the same, and more: exactly one of these."""

    json: Schema | str | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1, max_length=MAX_WORDS)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Generation(msgspec.Struct, kw_only=True):
    """What chat and plain completions have in common. None: the model's own default, or OpenAI's."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Fraction | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_IDS)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    logit_bias: (
        Annotated[dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)] | None
    ) = None
    cache_salt: Annotated[str, Meta(max_length=256)] | None = None
    user: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    # Known, and refused unless they ask for nothing.
    best_of: Any = None
    use_beam_search: Any = None
    prompt_logprobs: Any = None
    include_stop_str_in_output: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct):
    function: FunctionCall
    id: str = ""
    type: str = "function"


class Function(msgspec.Struct, omit_defaults=True):
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    type: Literal["function"]
    function: Function


class FunctionChoice(msgspec.Struct):
    name: str


class NamedTool(msgspec.Struct):
    type: Literal["function"]
    function: FunctionChoice


class ChatMessage(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatRequest(Generation, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    chat_template: Any = None
    documents: Any = None
    continue_final_message: Any = None

    @property
    def limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class CompletionRequest(Generation, kw_only=True):
    """`prompt`: a text, token ids, or a list of either."""

    prompt: str | list[str | TokenId | list[TokenId]]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    add_special_tokens: bool | None = None

    suffix: Any = None

    @property
    def limit(self) -> int:
        return self.max_tokens or 16  # OpenAI's default for plain completions


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    return_token_strs: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[TokenId]


# Values that ask for nothing, beside null.
UNSUPPORTED: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "use_beam_search": (False,),
    "prompt_logprobs": (),
    "include_stop_str_in_output": (False,),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "chat_template": (),
    "documents": ([],),
    "continue_final_message": (False,),
    "suffix": ("",),
}

Body = TypeVar("Body", ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest)

_AT = re.compile(r"^(?P<what>.*) - at `(?:key` in `)?\$\.?(?P<path>[^`]*)`$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<field>[^`]+)`")


def decode(raw: bytes, kind: type[Body]) -> Body:
    """Raises ApiError (400) that names the field."""
    try:
        body = msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(f"The body is not valid JSON: {error}", code="invalid_json") from None
    for name, neutral in UNSUPPORTED.items():
        value = getattr(body, name, None)
        if value is not None and value not in neutral:
            raise ApiError(f"{name}: not supported by this server", param=name, code="unsupported_parameter")
    return body


def decode_schema(param: str, text: str) -> Schema:
    """A JSON schema sent as text. Raises ApiError (400)."""
    try:
        return msgspec.json.decode(text, type=Schema)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(param, f"no JSON schema: {error}") from None


def _named(text: str) -> ApiError:
    at = _AT.match(text)
    what, path = (at["what"], at["path"]) if at else (text, "")
    missing = _MISSING.search(what)
    if missing:
        path = f"{path}.{missing['field']}" if path else missing["field"]
    return invalid(path, what) if path else ApiError(f"The body is wrong: {what}", code="invalid_value")
