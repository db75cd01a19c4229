"""A text that a server's reasoning parser has split is joined as the model wrote it."""

from __future__ import annotations

import contextvars

import pytest

from scaffolding_ext.prompts.prompting import TextPrompting
from scaffolding_ext.request.program import Program, Question, enter_program
from scaffolding_ext.workers.openai.responses import Piece, WholeText


@pytest.mark.parametrize(("family", "close"), [(None, "</think>"), ("magistral", "[/THINK]"), ("instruct", "</think>")])
def test_the_closing_mark_is_that_of_the_family(family: str | None, close: str) -> None:
    def joined() -> str:
        if family is not None:
            program = Program()
            program.question = Question(prompting=TextPrompting(True, family))
            enter_program(program)
        whole = WholeText()
        pieces = [Piece("", None, None, None, thinking="2 + "), Piece("4", None, None, None, thinking="2")]
        return "".join(map(whole.add, pieces))

    assert contextvars.copy_context().run(joined) == f"2 + 2{close}4"
