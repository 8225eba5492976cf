"""Laws of finding tool calls in a text: no split shows, nothing is lost, and what only looks like a call is content."""

import json
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from services.router.tool_calls import ToolCalls
from services.router.tool_format import HERMES, LLAMA, MISTRAL, ToolFormat

FORMATS = {"hermes": HERMES, "mistral": MISTRAL, "llama": LLAMA}
NAMES = ("weather", "rows")
WORDS = (
    *("<tool_call>", "</tool_call>", "<tool", "[TOOL_CALLS]", "[", "]", "{", "}", '"name": ', '"weather"', ", ", ";"),
    *('"arguments": ', '"parameters": ', '"', "\\", " ", "\n", "hello", "é🙂", "1"),
)
JUNK = st.lists(st.sampled_from(WORDS), max_size=30).map("".join)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('a"\\{}[] é', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"}', max_size=2), inner, max_size=3),
    max_leaves=6,
)
CALLS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.dictionaries(st.text("ab", max_size=2), VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)


def read(form: ToolFormat, pieces: list[str]) -> tuple[str, list[tuple[str, str]], int]:
    """Content, calls as (name, arguments), and how many were whole."""
    finder = ToolCalls(form, NAMES)
    content, calls = "", []
    for said, parts in [*(finder.push(piece) for piece in pieces), finder.flush()]:
        content += said
        for part in parts:
            if part.name:
                assert part.index == len(calls) and part.id.startswith("call_")
                calls.append((part.name, ""))
            name, arguments = calls[part.index]
            calls[part.index] = (name, arguments + part.arguments)
    return content, calls, finder.whole


def split(text: str, cuts: list[int]) -> list[str]:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    return [text[start:stop] for start, stop in pairwise(places)]


def spelled(form: ToolFormat, calls: list[tuple[str, dict]]) -> str:
    objects = [json.dumps({"name": name, form.arguments: arguments}, ensure_ascii=False) for name, arguments in calls]
    if form.listed:
        return f"{form.begin}[{', '.join(objects)}]"
    if not form.begin:
        return "; ".join(objects)
    return "\n".join(f"{form.begin}\n{one}\n{form.end}" for one in objects)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@given(text=JUNK, cuts=st.lists(st.integers(0, 120), max_size=8))
@example(text='<tool_call>{"name": "weather", "arguments": {"a": 1}} x', cuts=[20, 21])
def test_no_split_shows(form: ToolFormat, text: str, cuts: list[int]) -> None:
    whole = read(form, [text])
    assert read(form, split(text, cuts)) == whole
    assert read(form, list(text)) == whole


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@given(calls=CALLS, cuts=st.lists(st.integers(0, 300), max_size=8))
def test_calls_come_out_as_they_were_written(form: ToolFormat, calls: list[tuple[str, dict]], cuts: list[int]) -> None:
    content, found, whole = read(form, split(spelled(form, calls), cuts))
    assert (content, whole) == ("", len(calls))
    assert found == [(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls]


@given(said=st.text("ab \n<tool_call>", max_size=20).filter(lambda said: "<tool_call>" not in said), calls=CALLS)
def test_text_before_a_call_is_content_without_the_space_between(said: str, calls: list[tuple[str, dict]]) -> None:
    content, found, _ = read(HERMES, [said + " \n" + spelled(HERMES, calls) + " \n"])
    assert content == said.rstrip()
    assert len(found) == len(calls)


@given(
    text=st.text(max_size=40).filter(lambda text: "<tool_call>" not in text),
    cuts=st.lists(st.integers(0, 40), max_size=5),
)
def test_a_text_without_calls_is_content_to_the_last_space(text: str, cuts: list[int]) -> None:
    assert read(HERMES, split(text, cuts)) == (text, [], 0)


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        (HERMES, 'a <tool_call>b</tool_call>', 'a <tool_call>b</tool_call>', []),
        (HERMES, '<tool_call>\n{"x": 1}\n</tool_call>', '<tool_call>\n{"x": 1}\n</tool_call>', []),
        (HERMES, '<tool_call>{"arguments": {"a":1}, "name": "f"}</tool_call>', "", [("f", '{"a":1}')]),
        (HERMES, '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
        (HERMES, '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("f", '{"a": 1}')]),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a": "}', "", [("f", '{"a": "}')]),
        (HERMES, '<tool_call>{"nam', '<tool_call>{"nam', []),
        (HERMES, "one <tool_ca", "one <tool_ca", []),
        (MISTRAL, 'hi [TOOL_CALLS] [{"name": "f", "arguments": {}}]', "hi", [("f", "{}")]),
        (LLAMA, '{"name": "unknown", "parameters": {}}', '{"name": "unknown", "parameters": {}}', []),
        (LLAMA, ' {"name": "weather", "parameters": {"a": 1}}', "", [("weather", '{"a": 1}')]),
        (LLAMA, 'see {"name": "weather", "parameters": {}}', 'see {"name": "weather", "parameters": {}}', []),
    ],
)  # fmt: skip
def test_what_models_write(form: ToolFormat, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert read(form, [text])[:2] == (content, calls)


def test_arguments_stream_before_the_call_is_whole() -> None:
    finder = ToolCalls(HERMES, NAMES)
    finder.push('<tool_call>\n{"name": "rows", "argu')
    _, parts = finder.push('ments": {"from": 1, ')
    assert [(part.name, part.arguments) for part in parts] == [("rows", ""), ("", '{"from": 1, ')]
    assert [part.arguments for part in finder.push('"to": 2}')[1]] == ['"to": 2}']
    assert finder.whole == 0
    finder.push("}")
    assert finder.whole == 1
