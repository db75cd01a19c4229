"""A model's chat template: its thinking marks, read off by rendering turns whose parts are known, and its variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.answers.reading import Marks
from scaffolding_ext.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Turn = Mapping[str, Any]
# Words that no template contains.
QUESTION, FURTHER, THOUGHT, ANSWER, RESULT = "Qaskzq", "Qagainzq", "Rthinkzr", "Atellza", "Ooutzo"
NAME, KEY, VALUE = "fetch_zf", "kxkey", "vxvalue"
TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {KEY: {"type": "string", "description": "d"}},
            "required": [KEY],
        },
    },
}
# Variables that transformers passes to every chat template.
_OF_TRANSFORMERS = {
    *("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"),
    *("bos_token", "eos_token", "pad_token", "unk_token", "range", "namespace", "dict", "lipsum", "cycler", "joiner"),
}
# Ways in which templates take an assistant's thinking, as fields of its turn. Lists of parts have a control: a template
# that also prints parts of a made-up type prints any list, which proves nothing.
_FIELDS: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any] | None]] = (
    ("reasoning_content", {"reasoning_content": THOUGHT}, None),
    ("thinking", dict.fromkeys(("thinking", "reasoning", "reasoning_content"), THOUGHT), None),
    *(
        (name, {"content": thinking}, {"content": control})
        for name, thinking, control in (
            (
                "parts of content",
                [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": ANSWER}],
                [{"type": "made_up", "made_up": THOUGHT}, {"type": "text", "text": ANSWER}],
            ),
            (
                "blocks of content",
                {"blocks": [{"type": "thoughts", "text": THOUGHT}, {"type": "response", "text": ANSWER}]},
                {"blocks": [{"type": "made_up", "text": THOUGHT}, {"type": "response", "text": ANSWER}]},
            ),
        )
    ),
    ("thought", {"thought": THOUGHT}, None),
    ("tool_plan", {"tool_plan": THOUGHT}, None),
)
# Variables with which templates switch thinking on and off; `{}` leaves it to the template.
ON: Sequence[Mapping[str, Any]] = (
    *({}, {"enable_thinking": True}, {"thinking": True}, {"thinking_mode": "enabled"}, {"thinking_mode": "thinking"}),
    *({"reasoning": True}, {"reasoning_effort": "high"}, {"thinking_effort": "high"}),
)
OFF: Sequence[Mapping[str, Any]] = (
    *({"enable_thinking": False}, {"thinking": False}, {"thinking_mode": "disabled"}, {"thinking_mode": "chat"}),
    *({"reasoning": False}, {"reasoning_effort": "none"}, {"reasoning_effort": "low"}),
    {"reasoning_effort": "no_think"},
)
_MARK = re.compile(r"</?([\w:|]*think[\w:|]*)>|\[/?THINK\]|<\|(?:START|END)_THINKING\|>")
# Marks of models whose templates show nothing of them but a word, in a comment for example.
_KNOWN = {
    "[BEGIN FINAL RESPONSE]": Marks("", "[BEGIN FINAL RESPONSE]"),
    "<|channel|>": Marks("<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant<|channel|>final<|message|>"),
    "detailed thinking": Marks(),
}
_LONGEST = 60  # characters of a header


class Derived(NamedTuple):
    """Thinking marks and their source."""

    marks: Marks
    source: str


class ChatTemplate:
    """A tokenizer's chat template, to be asked by rendering."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer

    def render(
        self, *turns: Turn, opened: bool = False, tools: Sequence[Mapping[str, Any]] = (), **switch: Any
    ) -> str | None:
        """Render a conversation, with `opened` for the assistant's next turn; None if the template refuses it."""
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    [dict(turn) for turn in turns],
                    tokenize=False,
                    add_generation_prompt=opened,
                    **({"tools": list(tools)} if tools else {}),
                    **switch,
                )
            )
        except Exception:  # a template is code of its authors, and may raise anything
            return None

    def switched(self, switches: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The switches that the template reads."""
        return [switch for switch in switches if switch.keys() <= self._names]

    @cached_property
    def _names(self) -> set[str]:
        from jinja2 import nodes

        return {name.name for name in self._tree.find_all(nodes.Name)} if self._tree else set()

    @cached_property
    def _tree(self) -> Any:
        return _parsed(self.source)

    @property
    def source(self) -> str:
        try:
            return str(self._tokenizer.get_chat_template())
        except (AttributeError, ValueError):  # several templates, none of them the default
            return str(self._tokenizer.chat_template)


def user(text: str = QUESTION) -> Turn:
    return {"role": "user", "content": text}


def said(content: Any = ANSWER, **fields: Any) -> Turn:
    return {"role": "assistant", "content": content, **fields}


def called(arguments: Any, id: str = "abcdefghi") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": NAME, "arguments": arguments}}


def result(id: str = "abcdefghi") -> Turn:
    return {"role": "tool", "tool_call_id": id, "name": NAME, "content": RESULT}


def between(text: str | None, begin: str, end: str) -> str | None:
    _, begun, rest = (text or "").partition(begin)
    found, ended, _ = rest.partition(end)
    return found if begun and ended else None


def common(texts: Sequence[str]) -> str:
    """The common beginning of texts, cut at a whole tag and a whole word."""
    found = texts[0][: num_shared(min(texts), max(texts))]
    further = [text[len(found)] for text in texts if len(text) > len(found)]
    if not further:
        return found
    for left, right in ("<>", "[]"):
        if found.rfind(left) > found.rfind(right):
            found = found[: found.rfind(left)]
            further = ["<"]
    if any(character.isalnum() for character in further):
        found = found.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")
    return found


def num_shared(one: str, other: str) -> int:
    """Characters with which two texts begin alike."""
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def opening_of(close: str) -> str | None:
    """The mark that a closing mark mirrors: `<x>` of `</x>`, `[X]` of `[/X]`, `<|START_X|>` of `<|END_X|>`."""
    if found := re.match(r"([<\[])/([\w:|]+[>\]])", close):
        return found[1] + found[2]
    if found := re.match(r"<\|END_(\w+)\|>", close):
        return f"<|START_{found[1]}|>"
    if found := re.match(r"<\|close\|>(\w+<\|sep\|>)", close):
        return f"<|open|>{found[1]}"
    return None


def declared_marks(response_template: Any) -> Derived | None:
    """The marks that a tokenizer's own `response_template` (transformers 5) gives; None if it gives none as texts."""
    fields = response_template.get("fields") if isinstance(response_template, Mapping) else None
    field = (fields or {}).get("reasoning_content") or {}
    opening, close = field.get("open"), field.get("close")
    if not isinstance(opening, str) or not isinstance(close, str):
        return None
    return Derived(Marks(opening.strip(), close.strip()), "comes with a response_template that has these marks")


def derived_marks(template: ChatTemplate) -> Derived | None:
    """Find a model's thinking marks; None if nothing in its template shows that it thinks."""
    return next(_by_fields(template), None) or _mentioned(template.source)


def _mentioned(source: str) -> Derived | None:
    """Marks that a template's text mentions, of models whose past turns never show their thinking."""
    known = [(word, marks) for word, marks in _KNOWN.items() if word in source]
    pairs = [(close, Marks(opening, close)) for opening, close in pairs_in(source)]
    return next((Derived(marks, f"mentions {word}") for word, marks in [*known, *pairs]), None)


def _conversations(turn: Turn) -> Iterator[list[Turn]]:
    """A turn as the last one, as an earlier one, and with a call whose result follows."""
    yield [user(), turn]
    yield [user(), turn, user(FURTHER)]
    yield [user(), {**turn, "tool_calls": [called({KEY: VALUE})]}, result()]


def _by_fields(template: ChatTemplate) -> Iterator[Derived]:
    """Marks around thinking that the turn has as a field, or as a part of its content."""
    head = _head(template)
    for name, fields, control in _FIELDS:
        for switch in template.switched(ON):
            if control is not None and any(
                THOUGHT in (template.render(*turns, **switch) or "") for turns in _conversations(said(**control))
            ):
                continue
            turn = said(**fields)
            for number, turns in enumerate(_conversations(turn)):
                text = template.render(*turns, **switch)
                before, behind = between(text, QUESTION, THOUGHT), between(text, THOUGHT, ANSWER)
                if number == 2 and before is not None:
                    behind = _shorter(behind, _behind_thought(template, text, switch))
                if before is None or behind is None or not behind.strip():
                    continue
                marks = _around(template, turn, switch, head, before, behind.strip())
                if number == 2:  # a call stands behind it
                    marks = marks._replace(answer_open="", answer_close="")
                yield Derived(marks, f"writes {name}{_under(switch)} between these marks")


def _shorter(one: str | None, other: str | None) -> str | None:
    return other if one is None or (other is not None and len(other) < len(one)) else one


def _behind_thought(template: ChatTemplate, text: str | None, switch: Mapping[str, Any]) -> str | None:
    """The text between thinking and a call, without what precedes the call anyway."""
    call = between(text, THOUGHT, NAME)
    *_, plain = _conversations(said())
    before_call = between(template.render(*plain, **switch), QUESTION, NAME)
    if call is None or before_call is None:
        return call
    return call[: len(call) - num_shared(call[::-1], before_call[::-1])] or call


def _around(
    template: ChatTemplate, turn: Turn, switch: Mapping[str, Any], head: str, before: str, behind: str
) -> Marks:
    """The marks in the texts before and behind some thinking.

    Args:
        head: The beginning that all of an assistant's turns have.
    """
    silent = {**turn, "content": "", "tool_calls": [called({KEY: VALUE})]}
    before_call = between(template.render(user(), silent, tools=[TOOL], **switch), THOUGHT, NAME)
    close = (common([behind, before_call.strip()]).strip() if before_call else "") or behind
    begun, ended = template.render(user(), opened=True, **switch) or "", template.render(user(), **switch) or "?"
    header = begun.removeprefix(ended).strip() if begun.startswith(ended) else ""
    if header and len(header) < _LONGEST:  # a new turn's header is no mark
        close = close.partition(header)[0].strip() or close
    opened = before[len(common([head, before])) :].strip()
    own = opening_of(behind)
    if own and own in before:  # a pair is surer than what differs
        opened = own
        close = next(behind[:end] for end in range(1, len(behind) + 1) if opening_of(behind[:end]) == own)
    tail = begun.partition(QUESTION)[2]
    if not opened and tail.startswith(before):  # prompts open it with words that past turns leave out
        opened = tail.removeprefix(before).strip()
    answer_open = behind.removeprefix(close).strip()
    return Marks(opened, close, answer_open, _answer_close(template, turn, switch, answer_open))


def _answer_close(template: ChatTemplate, turn: Turn, switch: Mapping[str, Any], answer_open: str) -> str:
    """The mark behind an answer that mirrors the one before it."""
    behind = (template.render(user(), turn, **switch) or "").rpartition(ANSWER)[2].strip()
    ends = (behind[:end] for end in range(1, len(behind) + 1))
    return next((end for end in ends if answer_open and opening_of(end) == answer_open), "")


def _head(template: ChatTemplate) -> str:
    """The common beginning of an assistant's turns in all states in which nobody thinks aloud."""
    heads = []
    for switch in template.switched([*ON, *OFF]):
        begun = (template.render(user(), opened=True, **switch) or "").partition(QUESTION)[2]
        heads += [begun] if "nothink" not in begun else []
        for turns in ([said()], [said(), user(FURTHER)]):
            heads.append(between(template.render(user(), *turns, **switch), QUESTION, ANSWER) or "")
    heads = [head for head in heads if head]
    return common([head for head in heads if head.lstrip()[:2] == heads[0].lstrip()[:2]]) if heads else ""


def pairs_in(text: str) -> list[tuple[str, str]]:
    """Pairs of thinking marks of which one is in the text."""
    return sorted({_pair(found[0]) for found in _MARK.finditer(text)})


def _pair(mark: str) -> tuple[str, str]:
    if opening := opening_of(mark):
        return opening, mark
    close = mark.replace("START", "END") if mark.startswith("<|START") else f"{mark[0]}/{mark[1:]}"
    return mark, close


def _parsed(source: str) -> Any:
    """Parse a chat template; None if it uses tags that only transformers knows, beside `generation`."""
    import jinja2

    template = re.sub(r"\{%-?\s*(?:end)?generation\s*-?%\}", "", source)
    try:
        return jinja2.Environment(extensions=["jinja2.ext.loopcontrols"]).parse(template)
    except jinja2.TemplateSyntaxError:
        return None


def _under(switch: Mapping[str, Any]) -> str:
    return "".join(f" (with {name}: {str(value).lower()})" for name, value in switch.items())


def check_variables(variables: Mapping[str, Any], template: Any) -> None:
    """Refuse variables that a chat template never reads, since it would silently ignore them."""
    from jinja2 import meta, nodes

    tree = _parsed(str(template))
    if tree is None:
        return
    read = meta.find_undeclared_variables(tree)
    unread = sorted(variables.keys() - read)
    if unread:
        its_own = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "store"}
        tests = (test.node for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined"))
        asked = {node.name for node in tests if isinstance(node, nodes.Name)}
        known = ", ".join(sorted((read - its_own | read & asked) - _OF_TRANSFORMERS)) or "none"
        raise ConfigError(
            f"{unread[0]!r} is not a variable of the chat template; apart from the conversation it reads: {known}",
            f"chat_template_kwargs.{unread[0]}",
        )
