"""A text that a server's reasoning parser has split is joined as the model wrote it."""

from __future__ import annotations

import contextvars
from types import SimpleNamespace

import pytest

from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.request.program import Program, Question, enter_program
from scaffolding_ext.workers.openai.flavors import FLAVORS
from scaffolding_ext.workers.openai.responses import GrowingAnswer


@pytest.mark.parametrize(("family", "close"), [(None, "</think>"), ("magistral", "[/THINK]"), ("instruct", "</think>")])
def test_the_closing_mark_is_that_of_the_family(family: str | None, close: str) -> None:
    def joined() -> str:
        if family is not None:
            program = Program()
            program.question = Question(prompting=Prompting(chat=True, family=family))
            enter_program(program)
        growing = GrowingAnswer(FLAVORS["vllm"], expects_ids=False)
        for thinking, text in (("2 + ", ""), ("2", "4")):
            delta = {"reasoning": thinking, "content": text}
            growing.add(SimpleNamespace(choices=[SimpleNamespace(delta=SimpleNamespace(**delta))]))
        return "".join(growing.texts)

    assert contextvars.copy_context().run(joined) == f"2 + 2{close}4"
