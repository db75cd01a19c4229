"""A text is split into thinking and answer once and right, whole or growing, in time linear in its length."""

from __future__ import annotations

import itertools
import random
import sys
from typing import Any

from scaffolding_ext.answers.reading import Marks, Splitter, SplitText, marks_in
from scaffolding_ext.answers.stop_strings import StopStrings

PLAIN = Marks()
FRAMED = Marks(answer_open="<response>", answer_close="</response>")
HARMONY = Marks("analysis", "assistantfinal")
HEADED = Marks("", "[BEGIN FINAL RESPONSE]")


def test_a_text_is_split() -> None:
    for text, is_open, marks, thinking, answer in [
        ("<think>a</think>\n\nb", False, PLAIN, "a", "b"),
        ("a</think>\n\nb", True, PLAIN, "a", "b"),
        ("<think>\na</think>b", True, PLAIN, "a", "b"),  # opened by the prompt, and again
        ("a long thought</think>b", None, PLAIN, "a long thought", "b"),
        ("so far", True, PLAIN, "so far", ""),
        ("<think>so far", False, PLAIN, "so far", ""),
        ("so far</thi", True, PLAIN, "so far</thi", ""),
        # it did not think
        ("def f():\n    return 1\n", False, PLAIN, "", "def f():\n    return 1\n"),
        ("just b", None, PLAIN, "", "just b"),
        ("  indented", False, PLAIN, "", "  indented"),
        ("One closes with </think> and goes on.", False, PLAIN, "", "One closes with </think> and goes on."),
        # marks as text
        ("Close with `</think>`, not `<think>`.", False, PLAIN, "", "Close with `</think>`, not `<think>`."),
        ("I end with `</think>` later.</think>b", True, PLAIN, "I end with `</think>` later.", "b"),
        ('a</think>Write "<think>", then </think> it.', True, PLAIN, "a", 'Write "<think>", then </think> it.'),
        ("a</think>you close with </think> then.", None, PLAIN, "a", "you close with </think> then."),
        ("a</think>b\n</think>\n", True, PLAIN, "a", "b\n"),
        ("a</think>b</think></think>", True, PLAIN, "a", "b"),
        ("a</think>```\n<think>\n</think>\n```", True, PLAIN, "a", "```\n<think>\n</think>\n```"),
        # further blocks
        ("<think>a</think>First. <think>c</think>Last.", False, PLAIN, "ac", "First. Last."),
        ("Well. <think>c</think>Last.", None, PLAIN, "c", "Well. Last."),
        ("<think>a</think>So: <think> is the mark.", False, PLAIN, "a", "So: <think> is the mark."),
        ("<think>a</think>\nthe <think> mark and </think>.", False, PLAIN, "a", "the <think> mark and </think>."),
        # marks of other models
        ("<think>a</think>\n<response>b</response>", False, FRAMED, "a", "b"),
        ("<response>b</response>\n", False, FRAMED, "", "b"),
        ("a</think>b </response> c", True, FRAMED, "a", "b </response> c"),
        ("analysisWe add.assistantfinal9", False, HARMONY, "We add.", "9"),
        ("steps\n[BEGIN FINAL RESPONSE]\nb", None, HEADED, "steps\n", "b"),
        ("steps", None, HEADED, "", "steps"),
    ]:
        assert Splitter(marks, is_open).whole(text)[:2] == (thinking, answer), text
        for step in (1, 2, 3, 7):
            splitter = Splitter(marks, is_open)
            for at in range(0, len(text), step):
                splitter.feed(text[at : at + step])
            assert splitter.end()[:2] == (thinking, answer), (text, step)


def test_stop_strings_end_the_answer_only() -> None:
    for text, is_open, answer, is_stopped in [
        ("a STOP b</think>c STOP d", True, "c ", True),
        ("a STOP b</think>c", True, "c", False),
        ("<think>STOP</think>STOP", False, "", True),
        ("c STOP d", False, "c ", True),
        ("a STOP b</think>c", None, "c", False),
        ("<think>a</think>One. <think>STOP</think>Two. STOP", False, "One. Two. ", True),
    ]:
        found = Splitter(PLAIN, is_open, StopStrings(("STOP",))).whole(text)
        assert (text, found.answer, found.is_stopped) == (text, answer, is_stopped)


def test_a_stream_gives_out_what_is_certain_and_waits_for_the_rest() -> None:
    splitter, seen = Splitter(PLAIN, None), []
    for piece in ("so", " far", "</think>", "\n\nIt", " is 4.", "</think>", " more"):
        splitter.feed(piece)
        seen.append((splitter.has_thought, splitter.reading.thinking, splitter.reading.answer))
    assert seen == [
        *[(False, "", "")] * 2,  # an unknown prompt may have opened thinking
        *[(True, "so far", "")] * 1,
        (True, "so far", "It"),
        *[(True, "so far", "It is 4.")] * 2,
        (True, "so far", "It is 4.</think> more"),
    ]


def test_any_way_to_cut_a_text_gives_the_same_reading() -> None:
    rng = random.Random(65)
    pieces = (" ", "\n", "a", "`", '"', "'", ". ", "word ", "```", "STOP", "OPX", '{"name":"f"}')
    for _ in range(20_000):
        marks = rng.choice((PLAIN, PLAIN, FRAMED, HARMONY, HEADED, Marks("<|x|>", "<|end|>", "<|y|>", "<|end|>")))
        own = [mark for mark in marks if mark]
        some = [*pieces, *own, *own, *(mark[: rng.randrange(1, len(mark) + 1)] for mark in own)]
        text = "".join(rng.choice(some) for _ in range(rng.randrange(1, 25)))
        options: Any = (marks, rng.choice((True, False, None)), rng.choice((None, StopStrings(("STOP", "TOPX")))))
        whole = Splitter(*options).whole(text)
        splitter, at = Splitter(*options), 0
        while at < len(text):
            size = rng.choice((1, 1, 2, 3, 7, 20))
            splitter.feed(text[at : at + size])
            at += size
            assert whole.thinking.startswith(splitter.reading.thinking), (text, options)
            assert whole.answer.startswith(splitter.reading.answer), (text, options)
        assert splitter.end() == whole, (text, options)


def num_calls(text: str, marks: Marks, is_open: bool | None, size: int) -> int:
    """Function calls in which a text is split, fed in pieces."""
    splitter, count = Splitter(marks, is_open, StopStrings(("<thunk>",))), 0

    def see(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        for at in range(0, len(text), size):
            splitter.feed(text[at : at + size])
        splitter.end()
    finally:
        sys.setprofile(None)
    return count


def test_steps_grow_with_the_text() -> None:
    for pieces, size, is_open in itertools.product(
        ("<think></think>", "`</think>`", "```<think>", "<thunk"), (4, 1_000_000), (True, None)
    ):
        few, many = (num_calls(pieces * num, PLAIN, is_open, size) for num in (400, 1_600))
        assert many < 4.4 * few + 100, (pieces, size, is_open)
        assert many < 12 * len(pieces) * 1_600, (pieces, size, is_open)


def test_the_marks_of_an_unknown_model_are_found_by_the_closing_one() -> None:
    cases = [
        ("a</think>b", Marks()),
        ("a</mm:think>b", Marks("<mm:think>", "</mm:think>")),
        ("a</think:opensource>b", Marks("<think:opensource>", "</think:opensource>")),
        ("[THINK]a[/THINK]b", Marks("[THINK]", "[/THINK]")),
        ("a<channel|>b", Marks("<|channel>thought", "<channel|>")),
        ("analysisThe </think> mark.assistantfinalb", HARMONY),
        ("a \u25c1/think\u25b7 b", Marks("\u25c1think\u25b7", "\u25c1/think\u25b7")),
        ("I rethink </b> END", None),
    ]
    assert [(text, marks_in(text)) for text, marks in cases if marks_in(text) != marks] == []


def test_a_prompt_that_ends_in_a_mark_opens_or_closes_thinking() -> None:
    assert PLAIN.opened_by("<|im_start|>assistant\n<think>\n")
    assert not PLAIN.opened_by("<|im_start|>assistant\n")
    assert PLAIN.closed_by("assistant\n<think>\n\n</think>\n\n")
    assert FRAMED.closed_by("</think><response>")
    assert not PLAIN.closed_by("</think> is a mark.")
    assert not HEADED.opened_by("anything")
    assert Splitter(PLAIN, False).whole("") == SplitText("", "", has_thought=False)
