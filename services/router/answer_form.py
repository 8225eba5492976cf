"""The form that a client wants its answer in: `response_format` as OpenAI has it, `structured_outputs` as vLLM has it."""

from typing import NamedTuple

from pdd.core.grammar import any_object, grammar, json_value, matching, one_of

from .errors import invalid
from .schema import Generation, ResponseFormat, Schema, StructuredOutputs, decode_schema


class Form(NamedTuple):
    """`rule` of core/grammar.py, or a `whole` grammar of the client's own; `param` is the field that asked."""

    param: str = ""
    rule: str = ""
    whole: str = ""

    @property
    def grammar(self) -> str:
        return self.whole or (grammar(self.rule) if self.rule else "")


FREE = Form()


def form_of(body: Generation) -> Form:
    """Raises ApiError (400) naming the field."""
    wanted = _of_response_format(body.response_format) if body.response_format else FREE
    own = _of_structured_outputs(body.structured_outputs) if body.structured_outputs else FREE
    if wanted.param and own.param:
        raise invalid("structured_outputs", "not together with response_format")
    return own if own.param else wanted


def _of_response_format(asked: ResponseFormat) -> Form:
    if asked.type == "text":
        return FREE
    if asked.type == "json_object":
        return Form("response_format", any_object())
    described = asked.json_schema
    if described is None or described.schema is None:
        raise invalid("response_format.json_schema", "a schema is needed")
    return Form("response_format", json_value(described.schema, strict=bool(described.strict)))


def _of_structured_outputs(asked: StructuredOutputs) -> Form:
    forms = {
        "json": lambda: Form("structured_outputs.json", json_value(_schema(asked.json))),
        "regex": lambda: Form("structured_outputs.regex", matching(asked.regex or "")),
        "choice": lambda: Form("structured_outputs.choice", one_of(asked.choice or [])),
        "grammar": lambda: Form("structured_outputs.grammar", whole=asked.grammar or ""),
        "json_object": lambda: Form("structured_outputs.json_object", any_object()),
    }
    given = [name for name in forms if getattr(asked, name) not in (None, False, "")]
    if len(given) > 1:
        raise invalid("structured_outputs", f"only one of {', '.join(given)}")
    return forms[given[0]]() if given else FREE


def _schema(given: Schema | str | None) -> Schema:
    return decode_schema("structured_outputs.json", given) if isinstance(given, str) else given or {}
