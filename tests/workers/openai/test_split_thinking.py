"""A text that a server's reasoning parser has split is joined as the model wrote it."""

from __future__ import annotations

import contextvars

import pytest

from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.request.program import Program, Question, enter_program
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.openai.flavors import FLAVORS
from scaffolding_ext.workers.openai.responses import GrowingAnswer
from scaffolding_ext.workers.openai.worker import OpenAIWorker
from tests.servers.openai_server import OpenAIServer


@pytest.mark.parametrize(
    ("family", "text"),
    [(None, "<think>2 + 2</think>4"), ("magistral", "2 + 2[/THINK]4"), ("instruct", "<think>2 + 2</think>4")],
)
def test_the_marks_are_those_of_the_family(family: str | None, text: str) -> None:
    def joined() -> str:
        if family is not None:
            program = Program()
            program.question = Question(prompting=Prompting(chat=True, family=family))
            enter_program(program)
        growing = GrowingAnswer(FLAVORS["vllm"], expects_ids=False)
        for thinking, answer in (("2 + ", ""), ("2", "4")):
            delta = {"reasoning": thinking, "content": answer}
            growing.add({"choices": [{"delta": dict(**delta)}]})
        return "".join(growing.texts)

    assert contextvars.copy_context().run(joined) == text


@pytest.mark.parametrize("flavor", ["auto", "vllm"])
def test_a_chain_of_continued_turns_opens_thinking_once(flavor: str) -> None:
    text = f"<think>{'5 and 3 are 8. ' * 30}</think>The answer is \\boxed{{8}}."
    with OpenAIServer(ScriptedWorker(text), "m", flavor="vllm", reasons=True) as server:
        worker = OpenAIWorker(server.url, "m", flavor=flavor, endpoint="chat")
        chain = DynasorCoTController(100, 9, 16, mode="chunk")
        with ScaffoldingLlm(chain, {"generation": worker}) as llm:
            (output,) = llm.generate("5 and 3?").outputs
    assert output.text.startswith("<think>5 and 3")
    assert (output.text.count("<think>"), output.text.count("</think>")) == (1, 1)
