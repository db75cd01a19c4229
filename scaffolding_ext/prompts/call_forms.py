"""Forms in which models write tool calls: read off a chat template by rendering known calls, and read back."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from scaffolding_ext.answers.reading import Marks
from scaffolding_ext.prompts.chat_template import (
    ANSWER,
    KEY,
    NAME,
    ON,
    QUESTION,
    RESULT,
    SECOND_KEY,
    SECOND_VALUE,
    TOOL,
    VALUE,
    ChatTemplate,
    between,
    called,
    common,
    num_shared,
    result,
    said,
    user,
)

Tools = Sequence[Mapping[str, Any]]
_ID = "abcdefghi"
_TOKEN = re.compile(r"<[^<>\s]*>|\[[^\[\]\s]*\]|[^\s<\[]+|[<\[]")
_LONGEST_KEY = 200
_OTHER_WORDS = r"(?=commentary|[^\w.-])[^{}]{0,60}(?=\{)"
_CDATA = "<![CDATA[", "]]>"  # around text in XML
_BARE_KEY = re.compile(r"([{,]\s*)([A-Za-z_]\w*)\s*:")


class ToolCall(NamedTuple):
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class CallForm:
    """One form of tool calls.

    Attributes:
        kind: `json`: objects with a name and arguments, or of arguments by name. `named`: a name, then an object.
            `python`: a list of Python calls. `keyed`: a name, then each argument between marks of its own.
        mark: Begins the calls in a text; empty if an object at the beginning of a text does.
        close: Ends them; empty if nothing does.
        lead: Text before a name.
        mid: Text between a name and its arguments.
        opener: Text before the key of an argument.
        ways: Texts between key and value, and behind the value, by type of value: strings first. A key in them is
            `KEY`.
        glue: Text between two arguments, but for these.
        end: Text behind the last argument of a call.
    """

    kind: Literal["json", "named", "python", "keyed"]
    mark: str
    close: str = ""
    lead: str = ""
    mid: str = ""
    opener: str = ""
    ways: tuple[tuple[str, str], ...] = ()
    glue: str = ""
    end: str = ""

    @property
    def texts(self) -> list[str]:
        """All texts of the form."""
        around = [text for way in self.ways for text in way]
        return [self.mark, self.close, self.lead, self.mid, self.opener, *around, self.glue, self.end]

    def as_shown(self, shown: Callable[[str], str]) -> CallForm:
        """The form in a text that hides special tokens."""
        mark, close, lead, mid, opener, *ways, glue, end = map(shown, self.texts)
        pairs = tuple(zip(ways[::2], ways[1::2], strict=True))
        return CallForm(self.kind, mark, close, lead, mid, opener, pairs, glue, end)

    def start(self, text: str, tools: Tools) -> int:
        """Position of the first call in an answer; -1 without any."""
        if self.mark:
            return text.find(self.mark)
        begin = len(text) - len(text.lstrip())
        head = re.compile(r"\{") if self.kind == "json" else _head_of(self, _offered(tools))
        return begin if head.match(text, begin) else -1

    def read(self, text: str, tools: Tools) -> list[ToolCall] | None:
        """Read the calls of a text that begins with them; None if one is broken or names another tool."""
        offered = _offered(tools)
        readers = {"json": _json, "named": _named, "python": _python, "keyed": _keyed}
        try:
            calls = list(readers[self.kind](self, text, offered))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        return calls if calls and all(call.name in offered for call in calls) else None

    def is_whole(self, text: str, tools: Tools) -> bool:
        """True if a text holds whole calls and nothing else."""
        text = text.strip()
        return self.start(text, tools) == 0 and text.endswith(self.close) and self.read(text, tools) is not None


HERMES = CallForm("json", "<tool_call>", "</tool_call>")
_XML = CallForm(
    "keyed",
    "<tool_call>",
    "</tool_call>",
    "<function=",
    ">",
    "<parameter=",
    ((">\n", "\n</parameter>"),),
    "",
    "</function>",
)
_MISTRAL = CallForm("json", "[TOOL_CALLS]")
KNOWN = (HERMES, _XML, _MISTRAL)  # tried in order where a template shows no call


def _offered(tools: Tools) -> dict[str, Mapping[str, Any]]:
    """Tools by name."""
    return {str(tool["function"]["name"]): tool["function"] for tool in tools}


# ---- readers: each yields the calls of a text, or raises ValueError


def _json(form: CallForm, text: str, offered: Mapping[str, Any]) -> Iterator[ToolCall]:
    at = len(form.mark)
    while (at := text.find("{", at)) >= 0:
        value, at = json.JSONDecoder().raw_decode(text, at)
        yield _call_of(value, offered)


def _call_of(value: Mapping[str, Any], offered: Mapping[str, Any]) -> ToolCall:
    if len(value) == 1 and (name := next(iter(value))) in offered:
        return ToolCall(name, _arguments(value[name]))
    inner = value.get("function")
    value = inner if isinstance(inner, dict) else value
    called_name: Any = value.get("name", value.get("tool_name"))
    if not isinstance(called_name, str):
        raise ValueError("a call without a name")
    return ToolCall(called_name, _arguments(value.get("arguments", value.get("parameters", {}))))


def _arguments(value: Any) -> dict[str, Any]:
    value = json.loads(value) if isinstance(value, str) else value  # some models write them as text
    if not isinstance(value, dict):
        raise ValueError("arguments that are no object")
    return value


def _named(form: CallForm, text: str, offered: Mapping[str, Any]) -> Iterator[ToolCall]:
    head, at = _head_of(form, offered), 0
    if form.lead and not head.search(text):  # gpt-oss writes other words between the name and the arguments
        head = _head_of(replace(form, mid=""), offered, _OTHER_WORDS)
    while (found := head.search(text, at)) is not None:
        value, at = json.JSONDecoder().raw_decode(text, found.end())
        yield ToolCall(found[1], _arguments(value))


def _python(form: CallForm, text: str, offered: Mapping[str, Any]) -> Iterator[ToolCall]:
    written = text.removeprefix(form.mark).partition(form.close or "\0")[0].strip()
    try:
        tree = ast.parse(written, mode="eval").body
    except SyntaxError:  # a line break in a string
        tree = ast.parse(written.replace("\n", "\\n"), mode="eval").body
    for call in tree.elts if isinstance(tree, ast.List) else [tree]:
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            raise ValueError("not a call with keywords")
        yield ToolCall(call.func.id, {str(word.arg): ast.literal_eval(word.value) for word in call.keywords})


def _keyed(form: CallForm, text: str, offered: Mapping[str, Any]) -> Iterator[ToolCall]:
    head, at = _head_of(form, offered), 0
    while (found := head.search(text, at)) is not None:
        properties = (offered[found[1]].get("parameters") or {}).get("properties") or {}
        arguments, at = {}, found.end()
        while not (rest := _behind(text, at, form.end)):
            at = _behind(text, at, form.glue) or at
            at = _behind(text, at, form.opener) or at
            key, way, begin = _key(form, text, at)
            written, at = _value(form, text, begin, way, key)
            arguments[key] = _typed(written, properties.get(key) or {}, form, way)
        at = rest
        yield ToolCall(found[1], arguments)


def _head_of(form: CallForm, offered: Mapping[str, Any], behind: str = "") -> re.Pattern[str]:
    """Matches a call up to its arguments, with the name as a group."""
    names = "|".join(re.escape(name) for name in sorted(offered, key=len, reverse=True))
    return re.compile(f"{_lenient(form.lead)}({names}){_lenient(form.mid)}{behind}")


def _lenient(literal: str) -> str:
    """A pattern of a literal: spaces may differ, numbers and ids vary."""
    found = r"\s*".join(re.escape(word) for word in literal.split())
    found = re.sub(r"\d+", r"\\d+", found).replace(_ID, r"[\w-]+")
    before, behind = (r"\s*" if end.isspace() else "" for end in (literal[:1], literal[-1:]))
    return before + found + (behind if found else "")


def _behind(text: str, at: int, literal: str) -> int:
    """Position behind a literal and the spaces before it; 0 if it is not there."""
    literal = literal.strip()
    while text[at : at + 1].isspace():
        at += 1
    return at + len(literal) if literal and text.startswith(literal, at) else 0


def _key(form: CallForm, text: str, at: int) -> tuple[str, int, int]:
    """The key at a position, how its value is written, and where that begins."""
    found = [
        (end, -len(eq), number)
        for number, (eq, _) in enumerate(form.ways)
        if (end := text.find(eq.rstrip(), at, at + _LONGEST_KEY)) >= 0
    ]
    if not found:
        raise ValueError("an argument without a value")
    end, _, number = min(found)
    return text[at:end].strip(), number, end + len(form.ways[number][0].rstrip())


def _value(form: CallForm, text: str, begin: int, way: int, key: str) -> tuple[str, int]:
    """The text of a value, and the position behind it."""
    eq, closer = form.ways[way]
    closer = closer.replace(KEY, key)
    if not closer:
        end = _end_of_plain(form, text, begin)
        return text[begin:end], end
    at = begin
    while (end := text.find(closer.lstrip(), at)) >= 0:
        at = end + len(closer.lstrip())
        rest = _behind(text, at, form.glue) or at
        if _behind(text, at, form.end) or _behind(text, rest, form.opener) or (form.glue.strip() and rest > at):
            space, before = eq[len(eq.rstrip()) :], closer[: len(closer) - len(closer.lstrip())]
            value = text[begin:end].removeprefix(space).removesuffix(before)
            return (value[len(_CDATA[0]) : -len(_CDATA[1])] if value.startswith(_CDATA[0]) else value), at
    raise ValueError("a value without an end")


def _end_of_plain(form: CallForm, text: str, at: int) -> int:
    """End of a value without an end mark: the next argument or the end, outside of brackets and strings."""
    quote, depth = form.ways[0][1], 0
    while at < len(text):
        if quote and text.startswith(quote, at):
            at = text.find(quote, at + len(quote))
            if at < 0:
                break
            at += len(quote)
            continue
        if not depth and (text.startswith(form.end.strip(), at) or (form.glue and text.startswith(form.glue, at))):
            return at
        depth += (text[at] in "[{") - (text[at] in "]}")
        at += 1
    raise ValueError("a value without an end")


def _typed(written: str, schema: Mapping[str, Any], form: CallForm, way: int) -> Any:
    """A value by its own way to be written, or else by the tool's schema."""
    if len(form.ways) > 1 and way == 0:
        return written
    if len(form.ways) == 1 and schema.get("type", "string") == "string":
        return written
    quote = form.ways[0][1]
    parts = written.split(quote) if quote and len(form.ways) > 1 else [written]
    plain = "".join(json.dumps(part) if number % 2 else part for number, part in enumerate(parts)).strip()
    for reader in (json.loads, ast.literal_eval, lambda text: json.loads(_BARE_KEY.sub(r'\1"\2":', text))):
        try:
            return reader(plain)
        except (ValueError, SyntaxError):
            continue
    raise ValueError(f"{written!r} is no {schema.get('type')}")


# ---- how a template writes calls


class ShownCalls(NamedTuple):
    """The calls that a template shows.

    Attributes:
        form: Their form; None if it is not known how to read it back.
        sample: A call as the template writes it.
        unread: What does not come back: `plain`, `quotes`, `types`, `list`, `two` or `none` (no arguments).
        as_text: The template takes arguments as JSON text only.
    """

    form: CallForm | None
    sample: str
    unread: tuple[str, ...] = ()
    as_text: bool = False


_PROOFS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "plain": [{KEY: "Rome"}],
    "quotes": [{KEY: 'say "hi", {x} <b> [y]\nnew'}],
    "types": [{KEY: "7", "num": 7, "flag": True}],
    "list": [{"many": ["a", "b"]}],
    "two": [{KEY: "A"}, {KEY: "B"}],
    "none": [{}],
}


def shown_calls(template: ChatTemplate, marks: Marks) -> ShownCalls | None:
    """Find the form in which a template writes an assistant's calls; None if it writes none."""
    for writer in _writers(template):
        one = writer.text({KEY: VALUE})
        if one is None or NAME not in one or VALUE not in one:
            continue
        learned = _Learned(writer, one, marks)
        form = learned.form()
        sample = learned.own(one).strip()
        if form is None:
            return ShownCalls(None, sample, tuple(_PROOFS), writer.as_text)
        forms = [replace(form, ways=form.ways[:num]) for num in range(1, len(form.ways) + 1)] or [form]
        tried = [(learned.unread(form), form) for form in forms]
        unread, form = min(tried, key=lambda pair: len(pair[0]))
        return ShownCalls(form, sample, unread, writer.as_text)
    return None


def as_text(turn: Mapping[str, Any]) -> dict[str, Any]:
    """A turn whose calls have their arguments as JSON text."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in turn.get("tool_calls") or ()
    ]
    return {**turn, **({"tool_calls": calls} if calls else {})}


class _Writer(NamedTuple):
    """One way to give a template an assistant's calls."""

    template: ChatTemplate
    as_text: bool
    content: str | None
    id: str
    has_result: bool
    switch: Mapping[str, Any]

    def text(self, *calls: Mapping[str, Any]) -> str | None:
        """The text of a turn with these calls, from the user's question on; None if the template refuses it."""
        ids = [self.id.replace(":0", f":{number}") for number in range(len(calls))]
        turn = said(self.content, tool_calls=[called(*pair) for pair in zip(calls, ids, strict=True)])
        turn = as_text(turn) if self.as_text else turn
        results = [result(id) for id in ids] if self.has_result else []
        text = self.template.render(user(), turn, *results, tools=[TOOL], **self.switch)
        return text.rpartition(QUESTION)[2].partition(RESULT)[0] if text and QUESTION in text else None


def _writers(template: ChatTemplate) -> Iterator[_Writer]:
    for switch in template.switched(ON)[:2]:
        for as_text in (False, True):
            for content in ("", None, ANSWER):
                for id in (_ID, f"functions.{NAME}:0"):
                    for has_result in (False, True):
                        yield _Writer(template, as_text, content, id, has_result, switch)


class _Learned:
    """The form of all calls, as far as one of them tells it."""

    def __init__(self, writer: _Writer, one: str, marks: Marks) -> None:
        self._writer, self._one, self._marks = writer, one, marks
        template, switch = writer.template, writer.switch
        plain = template.render(user(), said(), tools=[TOOL], **switch) or ""
        self._before, self._after = between(plain, QUESTION, ANSWER) or "", plain.rpartition(ANSWER)[2]

    def own(self, text: str) -> str:
        """The part of a turn with calls that no other turn has."""
        own = text[len(common([text, self._before])) :]
        if self._marks.think_close and self._marks.think_close in own.partition(NAME)[0]:
            own = own.partition(self._marks.think_close)[2]
        own = own.rpartition(ANSWER)[2] if self._writer.content == ANSWER else own
        return own[: len(own) - _len_end(own, self._after)] if self._after.strip() else own

    def form(self) -> CallForm | None:
        own = self.own(self._one)
        start = own.find("{")
        with_json = re.search(r"\{\s*" + re.escape(json.dumps(KEY)), own)
        if start >= 0 and f'"{NAME}"' in own[start:] and with_json:
            return self._framed("json", own[:start], _rest(own, start))
        name = own.rfind(NAME, 0, own.find(KEY))
        if name < 0:
            return None
        lead, behind = own[:name].rpartition(NAME)[2], own[name + len(NAME) :]
        if with_json:
            mid = own[name + len(NAME) : with_json.start()]
            return self._framed("named", lead, _rest(own, with_json.start()), lead=_last_token(lead), mid=mid)
        if re.match(rf"\(\s*{KEY}\s*=", behind):
            return self._framed("python", lead.removesuffix("["), behind.rpartition(")")[2].removeprefix("]"))
        return self._keyed(lead, behind)

    def _keyed(self, lead: str, behind: str) -> CallForm | None:
        mid, _, rest = behind.partition(KEY)
        eq, _, tail = rest.partition(VALUE)
        two = self._writer.text({KEY: VALUE, SECOND_KEY: SECOND_VALUE}) or ""
        apart = between(two.rpartition(KEY)[2] if KEY in eq else two, VALUE, SECOND_KEY)
        if not eq or not apart:
            return None
        opener = mid[len(mid) - _len_end(mid, apart) :]
        closer = tail[: min(num_shared(tail, apart), len(apart) - len(opener))]
        glue = apart[len(closer) : len(apart) - len(opener)]
        ways = [(eq, closer)]
        for value, begin, last in ((7741, "7741", "7741"), (True, "true", "true"), (["vxa"], "[", "]")):
            way = self._way(value, begin, last, tail[len(closer) :])
            if way is not None and way not in ways:
                ways.append(way)
        end = tail[len(closer) :]
        further = (self._writer.text({KEY: VALUE}, {KEY: VALUE}) or "").partition(VALUE)[2].removeprefix(closer)
        shared = common([end, further]) if NAME in further else ""
        head = shared.strip().split() or end.strip().split()
        return self._framed(
            "keyed",
            lead,
            end,
            lead=_last_token(lead),
            mid=mid[: len(mid) - len(opener)],
            opener=opener,
            ways=tuple(ways),
            glue=glue,
            end=head[0] if head else "",
        )

    def _way(self, value: Any, begin: str, last: str, end: str) -> tuple[str, str] | None:
        """The texts around a value of another type.

        Args:
            begin: What the value begins with, once in a text of its own.
            last: What it ends with.
            end: The text behind a call's last argument.
        """
        own = self.own(self._writer.text({KEY: value}) or "")
        rest = own[own.find(KEY, own.find(NAME)) + len(KEY) :] if KEY in own else ""
        if not end.strip() or not rest.rstrip().endswith(end.rstrip()):
            return None
        rest = rest[: rest.rindex(end.rstrip())]
        start = rest.lower().rfind(begin) if begin != "[" else rest.find(begin)
        stop = rest.lower().rfind(last)
        return None if start < 0 or not rest[:start].strip() else (rest[:start], rest[stop + len(last) :])

    def _framed(self, kind: Any, before: str, behind: str, **parts: Any) -> CallForm:
        mark = self._mark(before)
        return CallForm(kind, mark, self._last_mark(behind, mark), **parts)

    def _mark(self, begin: str) -> str:
        """The first mark that no other turn has."""
        tokens = list(_TOKEN.finditer(begin))
        for number, token in enumerate(tokens):
            if token[0] not in self._before and token[0] not in "[<":
                is_word = token[0].replace("_", "").isalnum()
                is_opened = number and tokens[number - 1][0] in "<["
                first = max(0, number - 1) if is_word or is_opened else number
                last = min(number + 1, len(tokens) - 1) if is_word else number
                return begin[tokens[first].start() : tokens[last].end()]
        return tokens[-1][0] if tokens else ""

    def _last_mark(self, end: str, mark: str) -> str:
        """The mark at the end of a text: one like the mark that began it, or the last."""
        tokens = [token[0] for token in _TOKEN.finditer(end)]
        tags = [token for token in tokens if token[0] in "<[" and token[-1] in ">]" and len(token) > 2]
        own = [tag for tag in tags if tag not in self._after and re.sub(r"\W", "", tag) == re.sub(r"\W", "", mark)]
        return (own or tags)[-1] if own or (tags and tags[-1] == tokens[-1] and tags[-1] not in self._after) else ""

    def unread(self, form: CallForm) -> tuple[str, ...]:
        """Names of the proofs that do not come back."""
        return tuple(name for name, calls in _PROOFS.items() if not self.reads_back(form, calls))

    def reads_back(self, form: CallForm, calls: Sequence[Mapping[str, Any]]) -> bool:
        text = self._writer.text(*calls) or ""
        if len(calls) > 1 and text.count(NAME) < len(calls) * self._one.count(NAME):
            return True  # the template shows one call a turn
        own = self.own(text)
        start = form.start(own, [TOOL])
        return start >= 0 and form.read(own[start:], [TOOL]) == [ToolCall(NAME, dict(call)) for call in calls]


def _rest(text: str, start: int) -> str:
    """The text behind the JSON object at a position."""
    try:
        return text[json.JSONDecoder().raw_decode(text, start)[1] :]
    except ValueError:
        return ""


def _last_token(text: str) -> str:
    """The last mark or word of a text; of an open tag, all of it."""
    opened = text.rfind("<")
    if opened > text.rfind(">"):
        return text[opened:]
    tokens = _TOKEN.findall(text)
    return tokens[-1] + ("\n" if text[-1].isspace() else "") if tokens else ""


def _len_end(one: str, other: str) -> int:
    """Characters with which two texts end alike, from the beginning of a tag, a space or a word on."""
    num = num_shared(one[::-1], other[::-1])
    end = one[len(one) - num :]
    if ">" in end and "<" not in end.partition(">")[0]:
        return len(end.partition(">")[2])
    return num
