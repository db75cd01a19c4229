"""Extraction of the final answer from a text."""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

from scaffolding_ext.answers.forms import plain_characters
from scaffolding_ext.answers.reading import Marks, Splitter, marks_in, split_unknown

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE_BOX = re.compile(  # `\boxed 2`, `\boxed\pi` or an empty one; not the word in "use \boxed for it"
    r"""
    \\(?:boxed|fbox)(?:\s*\{\s*\}
    | (?:[ \t]+|(?=[\\\d]|[^\w\s{}$\-]))
      (?=[-+]?\.?\d | \\[A-Za-z] | [^\W\d_](?!\ ?[^\W\d_]) | [^\w\s{}\\$]\$ | [^\x00-\x7f\w])
      (?:((?:[^$\n\\A-Za-z{}] | \\(?!boxed|fbox)(?:[A-Za-z]+(?![A-Za-z])|[^A-Za-z\n]) | [A-Za-z](?![A-Za-z])
          | \{(?:[^{}]|\{[^{}]*\})*\})+)(?=\$)  # the rest of the formula, if it has no words
      | (\\[A-Za-z]+(?:\{[^{}\n]*\})+ | [^\s$]+)))
    """,
    re.VERBOSE,
)
_BLOCK = re.compile(r"([<\[])((?!answer)[A-Za-z][\w:-]{0,30}[>\]])", re.IGNORECASE)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TAG = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL | re.IGNORECASE)
_TURN_END = re.compile(  # a mark by which a model or its template ends a turn
    r"<[|\uff5c](?:im_(?:end|start)|end|return|call|user|observation|eo[stm](?:_id)?|start_header_id"
    r"|end[_\u2581]?(?:of[_\u2581]?)?(?:text|turn|sentence|response|solution)\w*)[|\uff5c]>"
    r"|</s>|<(?:eos|end_of_turn|start_of_turn|turn\|)>|\[/INST\]|\[\|endofturn\|\]",
    re.IGNORECASE,
)
_QUESTION = re.compile(r"^[ \t]*(?:Question|Problem|Q|Human|User|Instruction):", re.IGNORECASE | re.MULTILINE)
_MOST_TURNS = 8  # searched for one that ends the answer
_JOINT = re.compile(r"[\s$]*(?:,|;|(?:,[\s$]*)?\b(?:and|or)\b)[\s$]*")  # between the boxes of one list
_MOST_BOXES = 64
# An answer phrase, and the text after it, up to the end of its sentence or line; a decimal point does not end it.
_HEADS = (  # of languages that join a phrase and its answer by a verb or a colon
    *("Antwort", "Lösung", "réponse", "respuesta", "resposta", "risposta", "antwoord", "svaret", "svar", "odpowiedź"),
    *("cevap", "jawaban", "jibu", "đáp án", "ответ", "відповідь", "الإجابة", "उत्तर", "উত্তর"),
)
_PHRASE = re.compile(
    r"(?:final |the |\b)answer(?: (?:to|of|for) [^.:\n]{1,60}?)?\**\s*(?:\bis\b|:)|^[#* ]*(?:final )?answer\**[ \t]*\n"
    rf"|\b(?:{'|'.join(_HEADS)})(?: (?:corr?ett?[ao]|correcta?|final[ae]?|đúng))?\**"
    r"(?:\s*:|\s?—|\s-\s|\s+(?:ist|lautet|est|es|é|è|är|er|is|adalah|là)\b)(?: (?:la opción|la|a|opção)\b)?"
    r"|(?:答案|正解|答え)\**\s*[是为為は:]|选(?=\s*\(?[A-J]\b)|(?:정답|답)\s?[은:]|คําตอบ\s?(?:คือ|:)",
    re.IGNORECASE | re.MULTILINE,
)
_BEGINNINGS = ("answer", *map(str.casefold, _HEADS), "答案", "正解", "答え", "选", "답", "คําตอบ")
_COMMENT = re.compile(r"(?:in)?correct|clear|obvious|as follows|above|below", re.IGNORECASE)  # on an answer
# A sentence about an answer, not an answer: the last resort.
_REMARK = re.compile(
    r"(?:not|neither|in(?: the| its| this)? (?:box|form|units?|terms)|based|rounded|expressed|written|verified"
    r"|confirmed|consistent|reasonable|valid|helpful|exact|clear|what you"
    r"|(?:given|obtained|found|calculated|computed) (?!to|as|by)\w+|(?:found|obtained) by \w+ing"
    r"|(?:in)?correct(?! to)|(?:right|wrong|easy|simple)(?: \w+ing| because| since| by| if| when| now)|derived)\b",
    re.IGNORECASE,
)
_SUPPOSED = re.compile(
    r"\b(?:if|whether|how|why|unless|[Aa]ssuming)(?: (?:the|your|my|this|that))?(?: (?:final|correct))? ?\Z"
)
_SENTENCE_END = (  # a point before a capital, but not behind an abbreviation or within initials and their name
    r"(?<!\b(?:St|Dr|Mr|Ms|Mt|Ft|Lt|Pt|Fr|vs))(?<!\b(?:Mrs|Gen|Sen|Rep|Ste|Sgt|Col|Rev|Gov|Maj|Hon|Vol|Fig))"
    r"(?<!\b(?:Prof|Capt|Pres|Dept))(?<!\.[A-Z])(?<!\b[A-Z]\.\s[A-Z])\.\**\s+"
    r"(?!(?<=\b[A-Z]\.\s)[A-Z]\.|(?<=[a-z]\s[F-Z]\.\s)[A-Z][a-z]+(?:[.,;!?\n]|\Z))[A-Z]"
)
_STATED = re.compile(
    r"[\s:*]*(?:(?:therefore|thus|hence|then|simply|just|indeed|exactly|actually)\b[\s:,]*)?"
    rf"(?:\\\[\s*(?P<formula>[^\n]+?)\s*\\\]|([^\n]+?)(?={_SENTENCE_END}|[\u3002\uff61]|\n|\Z))"
)
_AFTERWORD = re.compile(  # within the sentence: a clause about the answer, or words in brackets behind a value
    r"(?:[,;] (?:as|which|since|because|so|where|not|but|assuming|given|rounded|making|giving|done)\b"
    r"|(?<=[\d}$*)])\s(?:[\u2013\u2014]\s|\((?!mod)[A-Za-z][a-z]+[^()]*\)\Z)).*"
)
# End of an answer in an unclosed box: the end of its line, formula or sentence.
_LINE_END = re.compile(r"\n|\\\]|(?<!\\)\$|(?<=\w)\.\s+(?=[A-Z])")
_CUT = re.compile(r"(?:\A\$+|\A\\[(\[]|\\(?:b(?:o(?:x(?:ed?)?)?)?)?)\Z")  # an answer cut just after it was opened
_MATHS = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.])[+-]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?(?:\s?\\?%)?|(?<![\w.])[+-]?\.\d+"
)
_RELATION = re.compile(r"(?<![<>!\\])=|\\approx")
_HASHES = re.compile(  # GSM8K's last line `#### 180`, or a line of nothing else; `#### 1. Begin` is a heading
    r"^[ \t]*####[ \t]*(?:(?!\d+[.)] )((?:[+-][ ]?)?(?:\\?\$|[€£])?[ ]?[+-]?\.?\d[^\n]{0,40}?)[.\s]*\Z"
    r"|([+-]?(?:\\?\$|[€£])?[+-]?(?:\d[\d,]*(?:\.\d+)?|\.\d+))\.?[ \t]*$)",
    re.MULTILINE,
)
_WORD = r"(?!(?:it|is|and|or|because|since|as|was|would|for|in)\b)[a-z]"  # "I hope", but not "A is right"
_LOWER_LETTER = re.compile(r"[\s(\[*]*([a-z])[\s)\].:*]*")
_LAST_CHARACTERS = 4_000  # searched for the last number or formula


def extract(
    text: str,
    *,
    fallback: Literal["last"] | None = None,
    choices: str = "",
    extractor: Callable[[str], str | None] | None = None,
) -> str | None:
    r"""Return the final answer: the last box or tag, else a last line `#### 180`, else the text after the last phrase.

    A box is `\boxed{...}` or `\fbox{...}`, a tag `<answer>...</answer>`; boxes joined by commas or "and" are one list.
    Thinking is read only if nothing behind it states an answer, and a question that the model asks itself ends the
    text. If the last box is unclosed, or a phrase ends in half a box, the result is None: the text was cut
    inside the answer.

    Args:
        text: Model output.
        fallback: `"last"` takes the last formula or number of a text with neither box nor phrase; of a formula with an
            equals sign, the right-hand side.
        choices: Letters of a multiple-choice question, such as `"ABCD"`. The answer is then one of them: the first that
            stands by itself in the last box, tag or phrase that has one, else the last in the text.
        extractor: Tried before these rules, which apply if it returns None or only spaces.

    Returns:
        The answer, never empty.
    """
    own = extractor(text) if extractor is not None else None
    if own is not None and own.strip():
        return own.strip()
    if not text.isascii():
        text = plain_characters(text)
    if "boxed" in text or "fbox" in text:  # a substring test is far faster
        text = _BARE_BOX.sub(_in_braces, text)
    if "_of_box|>" in text:
        text = text.replace("<|begin_of_box|>", "<answer>").replace("<|end_of_box|>", "</answer>")

    def read(part: str) -> str | None:
        return _choice(part, choices) if choices else _stated(part, fallback == "last")

    parts: tuple[str, ...] = (text,)
    if (marks := marks_in(text) or (_first_block(text) if text[:1] in "<[" else None)) is not None:
        reading = Splitter(marks, None).whole(text)
        parts = reading.answer, reading.thinking
    for part in parts:
        if answer := read(_first_turn(part, read) if ":" in part or "<" in part or "[" in part else part):
            return answer
    return None


def _first_block(text: str) -> Marks | None:
    """The tags of a block with which a text begins, such as `<scratchpad>`: an answer may stand behind it."""
    begun = _BLOCK.match(text)
    close = begun and f"{begun[1]}/{begun[2]}"
    return Marks("", close) if close and close in text else None


def _in_braces(box: re.Match[str]) -> str:
    content = box[1] or box[2]
    return f"\\boxed{{{content.rstrip('.,; ')}}}" if content else "\\boxed."  # nothing, as in a box that was cut


def shown(text: str) -> str:
    """The text behind its thinking, up to the mark that ends its turn."""
    return _TURN_END.split(split_unknown(text).answer.strip(), maxsplit=1)[0]


def _first_turn(text: str, read: Callable[[str], str | None]) -> str:
    """The text up to the end of its turn, or up to a further question, behind an answer."""
    for ends, reads in ((_TURN_END, read), (_QUESTION, _stated)):
        for end in itertools.islice(ends.finditer(text), _MOST_TURNS):
            if reads(text[: end.start()]):
                text = text[: end.start()]
                break
    return text


def _stated(text: str, takes_last: bool = False) -> str | None:
    box = _last_box(text) if "box" in text else None
    tag = _last_tag(text) if "</" in text else None
    if tag is not None and (box is None or box.start < tag.end()):
        return _stated(tag[1]) or tag[1].strip()
    if box is not None:
        return box.answer
    answer = _behind_hashes(text) or next(_phrases(text), None)
    return answer or (_last_formula_or_number(text[-_LAST_CHARACTERS:]) if takes_last else None)


def _choice(text: str, choices: str) -> str | None:
    """The first letter in the tag, box or phrase that has one; else the last in the text."""
    box, tag = _last_box(text), _last_tag(text)
    if box is not None and box.answer is None:
        return None
    places = (tag and tag[1], box and box.answer, _behind_hashes(text), *_phrases(text))
    for place in places:
        if place and (found := _choices(place, choices)):
            return found[0]
    return next(reversed(_choices(text[-_LAST_CHARACTERS:], choices)), None)


class _Box(NamedTuple):
    start: int
    answer: str | None


def _last_box(text: str) -> _Box | None:
    """The last box, or the list of boxes that it ends; None without a box."""
    start = text.rfind("\\boxed{")
    if start >= 0 and text.find("box") == start + 1:  # the usual case: there is only one
        return _Box(start, up_to_brace(text[start + 7 :]) or None)
    boxes = list(deque(_BOX.finditer(text), maxlen=_MOST_BOXES))
    if not boxes:
        return None
    last = boxes.pop()
    answer = up_to_brace(text[last.end() :])
    parts, start = [answer], last.start()
    while answer and boxes:
        before = boxes.pop()
        inner = text[before.end() : start]
        end = _end_of_group(inner)
        if end is None or not _JOINT.fullmatch(inner, end + 1):
            break
        parts.append(inner[:end].strip())
        start = before.start()
    return _Box(last.start(), ", ".join(dict.fromkeys(filter(None, reversed(parts)))) or None)


def _last(matches: Iterable[re.Match[str]]) -> re.Match[str] | None:
    found = deque(matches, maxlen=1)
    return found[0] if found else None


def _last_tag(text: str) -> re.Match[str] | None:
    return _last(tag for tag in _TAG.finditer(text) if tag[1].strip())


def up_to_brace(text: str) -> str | None:
    """Return the text up to the first unmatched `}`, which closes an opened box; None without one.

    Braces escaped by a backslash are text.
    """
    end = _end_of_group(text)
    return None if end is None else text[:end].strip()


def _end_of_group(text: str) -> int | None:
    """Position of the first unmatched `}`."""
    end = text.find("}")
    if end < 0:
        return None
    if "{" not in text[:end] and "\\" not in text[:end]:
        return end
    depth = 0
    for token in _BRACE.finditer(text):
        if token[0] == "{":
            depth += 1
        elif token[0] == "}":
            if depth == 0:
                return token.start()
            depth -= 1
    return None


def begun_box(text: str) -> str | None:
    """Read an answer from the continuation of an open box: up to the closing brace, or else the first line.

    A forced answer is read even if the model never closes the box. The first line also ends with the formula (`$` or
    `\\]`) or the sentence. Returns None for an empty answer.
    """
    closed = up_to_brace(text)
    if closed is not None:
        return closed or None
    return _LINE_END.split(text.strip().lstrip("$"), maxsplit=1)[0].strip() or None


def _behind_hashes(text: str) -> str | None:
    """The number in a last line of GSM8K's form `#### 180`, or in one that has nothing else; headings are ignored."""
    found = _last(_HASHES.finditer(text)) if "####" in text else None  # a substring test is far faster
    return (found[1] or found[2]).strip() if found else None


def _phrases(text: str) -> Iterator[str]:
    """Yield what answer phrases state, the last first, remarks behind all others; nothing if the last one was cut."""
    remarks, end, lower = [], len(text), text.casefold()
    for word in _BEGINNINGS:  # a substring test is far faster
        if word in lower:
            break
    else:
        return
    for head in reversed(list(_PHRASE.finditer(text))):
        found = _STATED.match(text, head.end(), end)
        end = head.start()
        answer = "" if found is None else (found["formula"] or found[2]).strip().rstrip("*. \u2705").strip()
        answer = _AFTERWORD.sub("", answer, count=1).rstrip("*. ")
        if _CUT.search(answer):
            return
        if answer and not _COMMENT.fullmatch(answer):
            if (head[0][-1] != ":" and _REMARK.match(answer)) or _SUPPOSED.search(text, max(0, end - 30), end):
                remarks.append(answer)
            else:
                yield answer
    yield from remarks


def _choices(text: str, choices: str) -> list[str]:
    """The choice letters that stand by themselves; neither the pronoun I nor the article A."""
    found = re.findall(rf"(?<![A-Za-z\\])[{re.escape(choices)}](?![A-Za-z'\u2019])(?!(?<=[AI])\s+{_WORD})", text)
    lower = _LOWER_LETTER.fullmatch(text)
    if not found and lower and lower[1].upper() in choices:
        return [lower[1].upper()]
    return found


def _last_formula_or_number(text: str) -> str | None:
    formula, number = _last(_MATHS.finditer(text)), _last(_NUMBER.finditer(text))
    if formula and (not number or number.start() < formula.end()):
        written = next(group for group in formula.groups() if group is not None)
        value = _RELATION.split(written)[-1].strip().rstrip(".,").strip()
        return None if value in ("", "\\boxed") else value
    return number[0] if number else None
