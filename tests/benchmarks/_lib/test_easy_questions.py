"""Easy questions: their answers are right, they are drawn by seed, and examples stand before them."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks._lib.easy_questions import ASK, GYM_TASKS, TASKS, Exam, Question, draw_exam
from scaffolding_ext.answers import extract
from scaffolding_ext.errors import MissingDependencyError

ARITHMETIC = [name for name in TASKS if re.match("sum|difference|product", name)]


@pytest.mark.parametrize("task", TASKS)
def test_questions_differ_from_each_other_and_from_the_examples(task: str) -> None:
    exam = draw_exam(task, 8, 3)
    texts = [question.text for question in (*exam.examples, *exam.questions)]
    assert len(exam.questions) == 8
    assert len(set(texts)) == len(texts)
    assert draw_exam(task, 8, 3) == exam
    assert draw_exam(task, 8, 4).questions != exam.questions


@pytest.mark.parametrize("task", ARITHMETIC)
def test_sums_are_right(task: str) -> None:
    for question in draw_exam(task, 20, 0).questions:
        asked = re.sub("[^-+* 0-9]", "", question.text)
        assert eval(asked) == int(question.answer)


def drawn(task: str) -> tuple[Question, ...]:
    return tuple(draw_exam(task, 12, 0).questions)


def test_what_a_story_leaves_is_counted() -> None:
    for question in drawn("story, 2 steps"):
        total = 0
        for verb, number in re.findall(r"(has|buys|gives) (\d+)", question.text):
            total += -int(number) if verb == "gives" else int(number)
        assert total == int(question.answer) >= 0


def test_words_letters_and_days_are_counted() -> None:
    for question in drawn("words in a list, 2 to 6"):
        assert question.text.count(",") + 1 == int(question.answer)
    for question in drawn("last letter"):
        assert question.text.split('"')[1].endswith(question.answer)
    for question in drawn("letters of a word"):
        assert len(question.text.split('"')[1]) == int(question.answer)
    for question in drawn("days later, up to 6"):
        assert question.thought.endswith(f"{question.answer}.")


def test_the_odd_word_is_of_another_kind() -> None:
    for question in drawn("odd one out"):
        kinds = dict(re.findall(r"(\w+) is a kind of (\w+)", question.thought))
        others = {kind for word, kind in kinds.items() if word != question.answer}
        assert len(others) == 1
        assert kinds[question.answer] not in others


def test_a_checked_thought_is_thought_twice() -> None:
    (question, *_) = drawn("sum of 3 digits, checked")
    first, second = question.thought.split(" Let me check. ")
    assert first == second


@pytest.mark.parametrize("task", TASKS)
def test_the_answer_of_a_worked_example_is_read_back(task: str) -> None:
    question = draw_exam(task, 1, 0).examples[0]
    assert extract(f"{question.thought}{ASK}{question.answer}}}.") == question.answer


def test_examples_stand_before_the_question_as_turns() -> None:
    pytest.importorskip("transformers")
    from scaffolding_ext.prompts.prompting import Prompting

    exam = Exam("sum", [Question("1 + 1?", "2", "It is 2.")], [Question("2 + 2?", "4", "")])
    prompting = Prompting.for_model("tinylm/draft")
    (behind,) = exam.samples(prompting)
    (alone,) = exam.samples(prompting, with_examples=False)
    assert behind.prompt == f"<|user|>1 + 1?<|assistant|>It is 2.{ASK}2}}.<|end|>{alone.prompt}"
    assert (behind.target, behind.kind) == ("4", "sum")
    (bare,) = exam.samples(Prompting.for_model("tinylm/draft", chat_template=False))
    assert bare.prompt == f"1 + 1?\nIt is 2.{ASK}2}}.\n\n2 + 2?\n"


def test_tasks_of_reasoning_gym_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(MissingDependencyError, match="reasoning-gym"):
        draw_exam(next(iter(GYM_TASKS)), 2, 0)
