"""Splits a model's text into thinking and answer: the one reading of a text, whole or while it grows.

A text is cut into lexemes (marks, and the text between them), and a small machine takes them one at a time. A piece is
given out only once no later text can change it, so every way to cut a text gives the same reading. Time is linear.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import NamedTuple

from scaffolding_ext.answers.stop_strings import StopStrings

_QUOTES = {"`": "`", '"': '"', "'": "'", "\u201c": "\u201d", "\u2018": "\u2019", "\u00ab": "\u00bb"}
_FENCE = "```"
_SENTENCE_ENDS = frozenset(".!?:;)}]>*\u2026\u3002`")


class Marks(NamedTuple):
    """Texts by which a model's output marks its parts; empty if it has none.

    Attributes:
        think_open: Begins thinking, in the text or at the end of the prompt.
        think_close: Ends thinking.
        answer_open: Stands between the end of thinking and the answer.
        answer_close: Ends the answer.
    """

    think_open: str = "<think>"
    think_close: str = "</think>"
    answer_open: str = ""
    answer_close: str = ""

    def opened_by(self, prompt: str) -> bool:
        """True if a rendered prompt ends in open thinking; otherwise the model opens it, or answers at once."""
        return bool(self.think_open) and prompt.rstrip().endswith(self.think_open.rstrip())

    def closed_by(self, prompt: str) -> bool:
        """True if a rendered prompt ends in closed thinking, so the model answers at once."""
        ends = (f"{self.think_close}{behind}".rstrip() for behind in ("", self.answer_open))
        return bool(self.think_close) and prompt.rstrip().endswith(tuple(ends))


class SplitText(NamedTuple):
    """A text as split so far.

    Attributes:
        thinking: Its thinking, without marks; of several blocks, one after the other.
        answer: The rest, without marks, up to a stop string.
        has_thought: True if the text is behind its thinking, or never had any.
        stopped_at: Position in the text of the stop string that ended the answer; None if none did.
    """

    thinking: str
    answer: str
    has_thought: bool
    stopped_at: int | None = None

    @property
    def is_stopped(self) -> bool:
        return self.stopped_at is not None


# The marks of thinking that models write, besides tags that are named after it: for texts of an unknown model.
GPT_OSS = Marks("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "", "<|return|>")
KNOWN_MARKS = (
    Marks("analysis", "assistantfinal"),  # gpt-oss, decoded without its special tokens
    GPT_OSS,
    Marks("<|channel>thought", "<channel|>"),  # Gemma 4
    Marks("[THINK]", "[/THINK]"),
    Marks("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    Marks("<|begin_of_thought|>", "<|end_of_thought|>", "<|begin_of_solution|>", "<|end_of_solution|>"),
    Marks("<|inner_prefix|>", "<|inner_suffix|>"),
    Marks("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    Marks("", "[BEGIN FINAL RESPONSE]"),
)
_BY_CLOSE = {marks.think_close: marks for marks in KNOWN_MARKS}
_CLOSES = re.compile("|".join((r"</([\w:]{0,20}(?i:think|thought|reason)[\w:]{0,20})>", *map(re.escape, _BY_CLOSE))))


def marks_in(text: str) -> Marks | None:
    """The thinking marks of an unknown model's text: those that it begins with, else those of its first closing mark.

    None if no known mark closes thinking in it.
    """
    if not ("/" in text or "|" in text or "[" in text or "assistantfinal" in text):  # far faster than the search
        return None
    found = _CLOSES.search(text)
    if found is None:
        return None
    for marks in KNOWN_MARKS:
        if marks.think_open and marks.think_close in text and text.lstrip().startswith(marks.think_open):
            return marks
    return _BY_CLOSE.get(found[0]) or Marks(f"<{found[1]}>", found[0])


def split_unknown(text: str) -> SplitText:
    """Split a complete text of an unknown model; without marks of thinking, all of it is the answer."""
    marks = marks_in(text)
    return SplitText("", text, has_thought=True) if marks is None else Splitter(marks, None).whole(text)


class Splitter:
    """Splits a growing text. Thinking that is never closed has no answer behind it.

    - A mark between two quotes is text. The first closing mark ends thinking; a second one is text, or nothing at the
      end of the answer.
    - A text that begins neither in open thinking nor with the opening mark is the answer.
    - An opening mark in the answer begins a further block if a sentence may begin there and the block is closed.

    Args:
        marks: The model's marks.
        is_open: True if the prompt ends in open thinking, False if not. None if the prompt is unknown: then a closing
            mark without an opening one splits the text, and nothing is given out before it.
        stops: End the answer, never the thinking.

    Attributes:
        has_thought: As in `SplitText`.
    """

    def __init__(self, marks: Marks, is_open: bool | None, stops: StopStrings | None = None) -> None:
        self._marks = marks
        self._is_open = is_open
        self._lexer = _Lexer(marks)
        self._matcher = stops.matcher() if stops else None
        self._take: Callable[[str], None] = self._at_start
        self._thinking: list[str] = []
        self._answer: list[str] = []
        self._held: list[str] = []  # lexemes whose place is not known yet
        self._place = 0  # characters of the text whose place is known
        self._len_answer = 0
        self._stopped_at: int | None = None
        self.has_thought = False
        self._is_final = False
        self._begins_line = True  # leading newlines of a part are dropped
        self._last, self._last_solid = "", ""  # characters of the text before
        self._in_fence = False

    def feed(self, text: str) -> None:
        """Read a further piece."""
        for lexeme in self._lexer.feed(text):
            self._take(lexeme)

    def whole(self, text: str) -> SplitText:
        """Split a complete text."""
        self.feed(text)
        return self.end()

    def end(self) -> SplitText:
        """The text is complete; return the whole reading."""
        for lexeme in self._lexer.end():
            self._take(lexeme)
        self._is_final = True
        while self._held and self._take != self._stopped:
            self._settle()
        return self.reading

    @property
    def reading(self) -> SplitText:
        """The part of the reading that no later text can change."""
        answer = "".join(self._answer)
        if self._matcher is not None and self._matcher.start is not None:
            answer = answer[: self._matcher.start]
        elif self._matcher is not None and not self._is_final:
            answer = answer[: len(answer) - self._matcher.num_undecided]
        return SplitText("".join(self._thinking), answer, self.has_thought, self._stopped_at)

    # ---- states; each takes one lexeme

    def _at_start(self, lexeme: str) -> None:
        marks = self._marks
        if lexeme.isspace() and lexeme != marks.think_open:
            self._held.append(lexeme)
        elif lexeme == marks.think_open:
            self._drop_and_begin(self._in_thinking, lexeme)
        elif lexeme == marks.answer_open and self._is_open is not True:
            self._drop_and_begin(self._in_answer, lexeme)
        elif self._is_open is None:
            self._take = self._in_unknown
            self._take(lexeme)
        else:
            self._begins_line = False
            self.has_thought = not self._is_open
            self._held.append(lexeme)
            self._replay(self._in_thinking if self._is_open else self._in_answer)

    def _in_unknown(self, lexeme: str) -> None:
        self._held.append(lexeme)
        opens = lexeme == self._marks.think_open and self._may_begin_block()
        if opens or lexeme == self._marks.think_close:
            self._begins_line, self.has_thought = False, opens
            self._replay(self._in_answer if opens else self._in_thinking)
        else:
            self._see(lexeme)

    def _in_thinking(self, lexeme: str) -> None:
        if lexeme == self._marks.think_close:
            self._drop_and_begin(self._behind_thinking, lexeme)
        else:
            self._give(self._thinking, lexeme)

    def _behind_thinking(self, lexeme: str) -> None:
        if lexeme.isspace():
            self._held.append(lexeme)
            return
        if lexeme == self._marks.answer_open:
            self._drop_and_begin(self._in_answer, lexeme)
            return
        self._held.append(lexeme)
        self._replay(self._in_answer)

    def _in_answer(self, lexeme: str) -> None:
        marks = self._marks
        if lexeme == marks.think_open and self._may_begin_block():
            self._held.append(lexeme)
            self._take = self._in_open_block
        elif lexeme in (marks.think_close, marks.answer_close):
            self._held.append(lexeme)
            self._take = self._behind_answer
        else:
            self._in_fence ^= lexeme == _FENCE
            self._give(self._answer, lexeme)

    def _in_open_block(self, lexeme: str) -> None:
        self._held.append(lexeme)
        if lexeme == self._marks.think_close:
            self._place += len(self._held.pop(0))
            self.has_thought = False
            self._begins_line = True
            self._replay(self._in_thinking)

    def _behind_answer(self, lexeme: str) -> None:
        self._held.append(lexeme)
        if lexeme.isspace() or lexeme in (self._marks.think_close, self._marks.answer_close):
            return
        self._held.pop()  # closing marks that do not end the answer are text
        self._give_held(self._answer)
        if self._take != self._stopped:
            self._take = self._in_answer
            self._take(lexeme)

    def _stopped(self, lexeme: str) -> None:
        """Nothing behind a stop string counts."""

    # ---- decisions

    def _settle(self) -> None:
        """Decide about the held lexemes of a text that has ended."""
        take = self._take
        if take == self._at_start:
            if self._is_open:
                self._give_held(self._thinking)
            else:
                self.has_thought = True
                self._give_held(self._answer)
        elif take == self._in_unknown:
            self._begins_line, self.has_thought = False, True
            self._replay(self._in_answer)
        elif take == self._in_open_block:
            lexeme, *rest = self._held  # it is never closed, nor is any later one
            self._held = rest
            self._give(self._answer, lexeme)
            self._replay(self._in_answer)
        elif take == self._behind_answer:
            self._held.clear()
        else:
            self._give_held(self._answer)

    def _drop_and_begin(self, state: Callable[[str], None], mark: str) -> None:
        """Begin a part behind a mark, which is in no part, nor is what is held."""
        self._place += sum(map(len, self._held)) + len(mark)
        self._held.clear()
        self._begins_line, self.has_thought, self._take = True, state != self._in_thinking, state

    def _may_begin_block(self) -> bool:
        if self._is_final or self._in_fence:
            return False
        return self._last in ("", "\n") or not self._last_solid or self._last_solid in _SENTENCE_ENDS

    def _replay(self, state: Callable[[str], None]) -> None:
        held, self._held, self._take = self._held, [], state
        for lexeme in held:
            self._take(lexeme)

    def _give_held(self, part: list[str]) -> None:
        held, self._held = self._held, []
        for lexeme in held:
            self._give(part, lexeme)

    def _give(self, part: list[str], lexeme: str) -> None:
        self._place += len(lexeme)
        if self._begins_line:
            lexeme = lexeme.lstrip("\n")
        if not lexeme:
            return
        self._begins_line = False
        part.append(lexeme)
        if part is self._answer:
            self._see(lexeme)
            self._len_answer += len(lexeme)
            if self._matcher is not None and self._matcher.start is None and self._matcher.feed(lexeme):
                assert self._matcher.start is not None
                self._stopped_at = self._place - self._len_answer + self._matcher.start
                self._take = self._stopped

    def _see(self, lexeme: str) -> None:
        self._last = lexeme[-1]
        self._last_solid = (lexeme.rstrip() or self._last_solid)[-1:]


class _Table(NamedTuple):
    pattern: re.Pattern[str]
    prefixes: frozenset[str]  # of marks, to be completed by later text
    longest: int


@functools.lru_cache(maxsize=64)
def _table(marks: Marks) -> _Table:
    texts = sorted({_FENCE, *filter(None, marks)}, key=len, reverse=True)
    prefixes = frozenset(text[:end] for text in texts for end in range(1, len(text)))
    return _Table(re.compile("|".join(map(re.escape, texts))), prefixes, len(texts[0]))


class _Lexer:
    """Cuts a growing text into marks and the text between them."""

    def __init__(self, marks: Marks) -> None:
        self._pattern, self._prefixes, self._longest = _table(marks)
        self._before = ""  # the character before the rest
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        self._rest += text
        return self._cut(False)

    def end(self) -> list[str]:
        return self._cut(True)

    def _cut(self, is_final: bool) -> list[str]:
        text, at, found = self._rest, 0, []
        undecided = len(text) if is_final else self._undecided(text)
        plain = 0  # where the text since the last mark begins
        while (mark := self._pattern.search(text, at)) and mark.start() < undecided:
            at = mark.end()
            if not is_final and undecided < at:
                undecided = at + self._undecided(text[at:])
            left = text[mark.start() - 1] if mark.start() else self._before
            if mark[0] != _FENCE and left in _QUOTES and left:
                if at == len(text) and not is_final:
                    undecided = mark.start()
                    break
                if text[at : at + 1] == _QUOTES[left]:
                    continue
            found += [*self._plain(text[plain : mark.start()]), mark[0]]
            plain = at
        end = max(plain, undecided)
        found += self._plain(text[plain:end])
        self._before = text[end - 1] if end else self._before
        self._rest = text[end:]
        return found

    def _plain(self, text: str) -> list[str]:
        """Text as lexemes; a quoted mark by itself would be taken for a mark."""
        return [text[:1], text[1:]] if self._pattern.fullmatch(text) else [text] if text else []

    def _undecided(self, text: str) -> int:
        """Start of the longest end of the text that may become a mark."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                return len(text) - length
        return len(text)
