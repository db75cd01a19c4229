"""The form of a model's calls is read off its template, proven by reading known calls back, or refused by name."""

# ruff: noqa: E501  (templates are lines)
from __future__ import annotations

import copy
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.call_forms import HERMES, CallForm, ShownCalls, ToolCall
from scaffolding_ext.prompts.model_files import calls_of
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import load_tokenizer
from scaffolding_ext.prompts.tool_calls import OfferedTools, Said
from scaffolding_ext.protocol import GenerationTask

pytest.importorskip("transformers")

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "hourly": {"type": "boolean"},
                    "units": {"type": "array", "items": {"type": "string"}},
                    "place": {"type": "object"},
                },
            },
        },
    }
]
FRAME = (
    "{%% if tools %%}{{ tools | tojson }}{%% endif %%}{%% for m in messages %%}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{%% if m.tool_calls %%}%s{%% endif %%}<|im_end|>\n{%% endfor %%}"
    "{%% if add_generation_prompt %%}<|im_start|>assistant\n{%% endif %%}"
)
EACH = "{%% for c in m.tool_calls %%}{%% set f = c.function %%}%s{%% endfor %%}"
KEYS = "{%% for k, v in f.arguments.items() %%}%s{%% endfor %%}"
VALUE = "{{ v if v is string else v | tojson }}"
PARAMETERS = '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'


def each(text: str) -> str:
    return FRAME % (EACH % text)


def keyed(before: str, argument: str, behind: str) -> str:
    return each(before + KEYS % argument + behind)


# A template that shows each form, how it is read, and a reply with two calls.
FORMS = {
    "tags": (each(f"<tool_call>\n{JSON}\n</tool_call>\n"), "json", ['<tool_call>{"name":"weather","arguments":%s}</tool_call>']),
    "list": (FRAME % f"[CALLS][{EACH % (JSON + '{% if not loop.last %}, {% endif %}')}]", "json", ['[CALLS] [{"name": "weather", "arguments": %s}]']),
    "openai": (FRAME % "[CALLS]{{ m.tool_calls | tojson }}", "json", ['[CALLS][{"name": "weather", "arguments": %s, "id": "a1"}]']),
    "map": (FRAME % f"<|tools|>[{EACH % '{{ {f.name: f.arguments} | tojson }}'}]<|/tools|>", "json", ['<|tools|>[{"weather": %s}]<|/tools|>']),
    "bare": (FRAME % f"{{% set f = m.tool_calls[0].function %}}{PARAMETERS}", "json", ['{"name": "weather", "parameters": %s}']),
    "named": (each("[CALL]{{ f.name }}[ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}"), "named", ["[CALL]weather[ID]x9[ARGS]%s"]),
    "numbered": (each("<|call|>functions.{{ f.name }}:{{ loop.index0 }}<|args|>{{ f.arguments | tojson }}<|/call|>"), "named", ["<|call|>functions.weather:0<|args|>%s<|/call|>"]),
    "function": (each("<function={{ f.name }}>{{ f.arguments | tojson }}</function>"), "named", ["<function=weather>%s</function>"]),
}  # fmt: skip
KEYED = {
    "parameters": (
        keyed("<tool_call>\n<function={{ f.name }}>\n", f"<parameter={{{{ k }}}}>\n{VALUE}\n</parameter>\n", "</function>\n</tool_call>\n"),
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
    ),
    "pairs": (
        keyed("<tool_call>{{ f.name }}", f"<arg_key>{{{{ k }}}}</arg_key><arg_value>{VALUE}</arg_value>", "</tool_call>"),
        "<tool_call>weather<arg_key>city</arg_key><arg_value>Rome</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call>",
    ),
    "attributes": (
        keyed('<calls>\n<invoke name="{{ f.name }}">\n', f'<parameter name="{{{{ k }}}}" string="{{{{ (v is string) | tojson }}}}">{VALUE}</parameter>\n', "</invoke>\n</calls>"),
        '<calls>\n<invoke name="weather">\n<parameter name="city" string="true">Rome</parameter>\n<parameter name="days" string="false">2</parameter>\n</invoke>\n</calls>',
    ),
    "keys as tags": (
        keyed('<calls><invoke name="{{ f.name }}">', f"<{{{{ k }}}}>{VALUE}</{{{{ k }}}}>", "</invoke></calls>"),
        '<calls><invoke name="weather"><city>Rome</city><days>2</days></invoke></calls>',
    ),
    "quoted strings": (
        keyed("<|call>call:{{ f.name }}{{ '{' }}", "{{ k }}:{{ '<|q|>' ~ v ~ '<|q|>' if v is string else v | tojson }}{% if not loop.last %},{% endif %}", "}<call|>"),
        "<|call>call:weather{city:<|q|>Rome<|q|>,days:2}<call|>",
    ),
}  # fmt: skip


def prompting(template: str) -> Prompting:
    tokenizer = copy.deepcopy(load_tokenizer("tinylm/draft"))
    tokenizer.chat_template = template
    return Prompting(tokenizer, "instruct")


def shown(template: str) -> ShownCalls:
    tokenizer = copy.deepcopy(load_tokenizer("tinylm/draft"))
    tokenizer.chat_template = template
    found = calls_of(tokenizer)
    assert found is not None
    return found


@pytest.mark.parametrize("name", FORMS)
def test_a_form_with_json_is_found_and_read(name: str) -> None:
    template, kind, (call,) = FORMS[name]
    found = shown(template)
    assert found.form is not None
    assert (found.form.kind, found.unread) == (kind, ())
    offered = prompting(template).offered(TOOLS)
    rome, paris = ({"city": "Rome", "days": 2}, {"city": 'a "b" {c}', "units": ["x", "y"]})
    written = [
        call % text for text in ('{"city": "Rome", "days": 2}', '{"city": "a \\"b\\" {c}", "units": ["x", "y"]}')
    ]
    assert offered.said(written[0]) == Said("", [ToolCall("weather", rome)])
    if name != "bare":
        assert offered.said(f"I look.\n{written[0]}\n{written[1]}") == Said(
            "I look.", [ToolCall("weather", rome), ToolCall("weather", paris)]
        )


@pytest.mark.parametrize("name", KEYED)
def test_a_form_with_marks_around_each_argument_is_read_by_the_tools_schema(name: str) -> None:
    template, text = KEYED[name]
    found = shown(template)
    assert found.form is not None
    assert (found.form.kind, found.unread) == ("keyed", ())
    offered = prompting(template).offered(TOOLS)
    assert offered.said(f"I look.\n{text}") == Said("I look.", [ToolCall("weather", {"city": "Rome", "days": 2})])
    seven = offered.said(text.replace("Rome", "7")).calls
    assert seven == [ToolCall("weather", {"city": "7", "days": 2})]
    assert offered.said(text[:-20]).calls is None or name == "parameters"
    assert offered.said(text.replace("weather", "other")).calls is None
    assert offered.are_calls(text)
    assert not offered.are_calls(text[:-1])


@pytest.mark.parametrize("between", ["<|c|>commentary json<|m|>", " <|constrain|>json<|m|>", "commentary json"])
def test_other_words_may_stand_between_a_name_and_its_arguments(between: str) -> None:
    template = each("<|s|>bot to=functions.{{ f.name }}<|c|>commentary json<|m|>{{ f.arguments | tojson }}<|call|>")
    found = shown(template)
    assert found.form is not None
    assert (found.form.kind, found.unread) == ("named", ())
    text = f'<|s|>bot to=functions.weather{between}{{"city": "Rome"}}'
    offered = OfferedTools(TOOLS, [found.form])
    assert offered.said(text).calls == [ToolCall("weather", {"city": "Rome"})]
    assert offered.said(text.replace("weather", "weather_now")).calls is None


def test_python_calls_are_read() -> None:
    words = (
        '{{ k }}={{ (v | string | tojson) if v is not string else "\'" ~ v ~ "\'" }}{% if not loop.last %}, {% endif %}'
    )
    found = shown(FRAME % f"<|calls|>[{EACH % ('{{ f.name }}(' + KEYS % words + ')')}]<|/calls|>")
    assert found.form is not None
    assert (found.form.kind, found.form.mark, found.form.close) == ("python", "<|calls|>", "<|/calls|>")
    offered = OfferedTools(TOOLS, [found.form])
    said = offered.said("Hm. <|calls|>[weather(city='Ro\"me', days=2, units=['a'])]<|/calls|>")
    assert said == Said("Hm.", [ToolCall("weather", {"city": 'Ro"me', "days": 2, "units": ["a"]})])
    assert offered.said("<|calls|>[weather('Rome')]<|/calls|>").calls is None
    assert offered.said("<|calls|>[open(city=1)]<|/calls|>").calls is None
    assert offered.said("<|calls|>" + "(" * 10_000).calls is None


def test_what_a_form_cannot_hold_is_refused_by_the_parameters_name() -> None:
    """Lists are written as nested tags, which are not read."""
    nested = "<{{ k }}>{% if v is string or v is number %}{{ v }}{% else %}{% for i in v %}<item>{{ i }}</item>{% endfor %}{% endif %}</{{ k }}>"
    template = keyed('<calls><invoke name="{{ f.name }}">', nested, "</invoke></calls>")
    assert "list" in shown(template).unread
    with pytest.raises(ConfigError, match=r"'weather\.units' of type array.*not read here: '<calls><invoke") as caught:
        prompting(template).offered(TOOLS)
    assert caught.value.key == "tools"
    plain = copy.deepcopy(TOOLS)
    for name in ("units", "place", "hourly", "days"):
        del plain[0]["function"]["parameters"]["properties"][name]
    assert prompting(template).offered(plain).forms[0] == shown(template).form


def test_a_form_that_does_not_come_back_is_refused() -> None:
    template = each("CALL {{ f.name }} WITH {{ f.arguments.values() | join(' AND ') }}")
    with pytest.raises(ConfigError, match=r"cannot be used: .* not read here: 'CALL fetch_zf WITH vxvalue'"):
        prompting(template).offered(TOOLS)
    task = GenerationTask(input_str="Q")
    with pytest.raises(ConfigError, match="not read here"):
        prompting(template).apply(task, tools=TOOLS)


def test_without_a_call_in_the_template_the_known_forms_are_read_with_one_warning(caplog: Any) -> None:
    template = "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}: {{ m.content }}; {% endfor %}"
    found = prompting(template)
    texts = (
        '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>',
        "<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n</function>\n</tool_call>",
        '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome"}}]',
    )
    for text in texts:
        assert found.offered(TOOLS).said(text).calls == [ToolCall("weather", {"city": "Rome"})]
    assert len([record for record in caplog.records if "but no call" in record.message]) == 1


def test_arguments_go_back_as_text_to_a_template_that_takes_only_text() -> None:
    template = each("<tool_call>{{ '{\"name\": \"' + f.name + '\", \"arguments\": ' + f.arguments + '}' }}</tool_call>")
    assert shown(template).as_text
    assert shown(template).unread == ()
    task = GenerationTask(input_str="sunny")
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    history = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    prompting(template).apply(task, history, tools=TOOLS, last_turn={"role": "tool", "tool_call_id": "a"})
    assert '"arguments": {"city": "Rome"}}</tool_call>' in (task.input_str or "")


def test_a_template_without_tools_takes_none() -> None:
    with pytest.raises(ConfigError, match="does not show tools"):
        prompting("{% for m in messages %}{{ m.content }}{% endfor %}").offered(TOOLS)


def test_only_whole_calls_are_calls() -> None:
    offered = OfferedTools(TOOLS, [HERMES, CallForm("json", "[TOOL_CALLS]")])
    call = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    assert offered.are_calls(call)
    assert offered.are_calls(f"\n{call}\n{call}\n")
    assert offered.are_calls('[TOOL_CALLS][{"name": "weather", "arguments": {}}]')
    assert not offered.are_calls(f"so {call}")
    assert not offered.are_calls(f"{call} then")
    assert not offered.are_calls(call[:-3])
