"""What the model reads is, to the id, what Hugging Face would have given it."""

import json
from datetime import datetime

import pytest

from services.router.errors import ApiError
from services.router.schema import ChatMessage, ContentPart, FunctionCall, ToolCall
from services.router.text import ModelText
from tests.contract.text_model import BEGIN, CHATML, END, make_text_folder

LLAMA3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- set date_string = strftime_now("%d %b %Y") %}
{%- endif %}
{%- for message in messages %}
    {%- if loop.index0 > 7 %}{% break %}{% endif %}
    {%- if 'tool_calls' in message %}
        {%- for call in message.tool_calls %}
{{- '<call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</call>' }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
{{- '<result>' + message.content + '</result>' }}
    {%- else %}
{{- '<' + message['role'] + '>' + message['content'] | trim }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant {{ date_string }}>{% endif %}
"""
MARKED = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}{{ eos_token }}{% endgeneration %}"
    "{% else %}{{ m['content'] }}\n{% endif %}{% endfor %}{% if thinking is defined and thinking %}<think>{% endif %}"
)
SAID = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "東京の天気?  "},
    {"role": "assistant", "content": "Sunny <b>& warm</b>."},
    {"role": "user", "content": "And\nin Köln? 🙂"},
]
ROWS = {"city": "Köln", "rows": [1, 2.5, None, True], "html": "<a href='x'>&</a>"}


def messages(said):
    return [ChatMessage(**message) for message in said]


@pytest.mark.parametrize("template", [CHATML, LLAMA3, MARKED], ids=["chatml", "llama3", "marked"])
@pytest.mark.parametrize("asks", [True, False])
def test_a_chat_is_rendered_and_encoded_as_transformers_does(tmp_path, template, asks):
    from transformers import AutoTokenizer

    folder = make_text_folder(tmp_path, template=template)
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ours = ModelText(folder)
    prompt = ours.render(messages(SAID), add_generation_prompt=asks)
    assert prompt == theirs.apply_chat_template(SAID, tokenize=False, add_generation_prompt=asks)
    ids = theirs.apply_chat_template(SAID, tokenize=True, add_generation_prompt=asks, return_dict=True)["input_ids"]
    assert list(ours.encode(prompt, special=False)) == ids
    assert ids.count(BEGIN) == (template == LLAMA3)


def test_a_plain_text_gets_the_special_tokens_that_transformers_adds(tmp_path):
    from transformers import AutoTokenizer

    folder = make_text_folder(tmp_path)
    text = "Once upon a time"
    ids = ModelText(folder).encode(text, special=True)
    assert list(ids) == AutoTokenizer.from_pretrained(folder, local_files_only=True)(text)["input_ids"]
    assert ids[0] == BEGIN


def test_a_history_with_tool_calls_reads_as_transformers_renders_it(tmp_path):
    from transformers import AutoTokenizer

    folder = make_text_folder(tmp_path, template=LLAMA3)
    calls = [ToolCall(FunctionCall("rows", json.dumps(ROWS)), id="1")]
    ours = ModelText(folder).render(
        [
            ChatMessage(role="user", content="Look."),
            ChatMessage(role="assistant", tool_calls=calls),
            ChatMessage(role="tool", content="42", tool_call_id="1"),
        ]
    )
    said = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "rows", "arguments": ROWS}}]},
        {"role": "tool", "content": "42"},
    ]
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert ours == theirs.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert datetime.now().strftime("%b %Y") in ours


def test_a_template_file_stands_above_the_configuration(tmp_path):
    folder = make_text_folder(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert ModelText(folder).render([ChatMessage(role="user", content="hi")]) == "hi!"


def test_the_default_of_several_templates_is_taken(tmp_path):
    folder = make_text_folder(tmp_path)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert ModelText(folder).render([ChatMessage(role="user", content="hi")]) == "yes"


def test_options_of_a_request_reach_the_template(tmp_path):
    text = ModelText(make_text_folder(tmp_path, template=MARKED))
    said = [ChatMessage(role="user", content="hi")]
    assert text.render(said, options={"thinking": True}) == "hi\n<think>"


def test_text_parts_are_joined_by_line_breaks(tmp_path):
    text = ModelText(make_text_folder(tmp_path, template="{{ messages[0].content }}"))
    parts = [ContentPart("text", "a"), ContentPart("text", "b")]
    assert text.render([ChatMessage(role="user", content=parts)]) == "a\nb"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (ChatMessage(role="user", content=[ContentPart("image_url")]), "messages[0].content[0].type"),
        (ChatMessage(role="user", content=[ContentPart("text")]), "messages[0].content[0].text"),
        (ChatMessage(role="user"), "messages[0].content"),
        (
            ChatMessage(role="assistant", tool_calls=[ToolCall(FunctionCall("f", "{"))]),
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_message_that_cannot_be_read_is_named(tmp_path, message, param):
    text = ModelText(make_text_folder(tmp_path))
    with pytest.raises(ApiError) as refused:
        text.render([message])
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[9].content.x }}",
        "{{ 1 + 'a' }}",
        "{{ messages.append(1) }}",
    ],
)
def test_what_a_template_refuses_is_the_clients_error(tmp_path, template):
    text = ModelText(make_text_folder(tmp_path, template=template))
    with pytest.raises(ApiError) as refused:
        text.render([ChatMessage(role="user", content="hi")])
    assert (refused.value.status, refused.value.param) == (400, "messages")


def test_a_model_without_a_template_has_no_chat(tmp_path):
    text = ModelText(make_text_folder(tmp_path, template=None))
    with pytest.raises(ApiError, match="no chat template"):
        text.render([ChatMessage(role="user", content="hi")])


def test_end_tokens_and_defaults_come_from_the_models_files(tmp_path):
    text = ModelText(make_text_folder(tmp_path, eos_token_id=[0, END], temperature=0.6, top_k=20))
    assert sorted(text.end_ids) == [0, END]
    assert text.defaults == {"temperature": 0.6, "top_k": 20}
