import pytest
from second_look import SecondLookController

from scaffolding_ext import NativeGenerationController, Prompting, ScaffoldingLlm
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.testing.controller_contract import CONTROLLER_CHECKS


@pytest.mark.parametrize("check", CONTROLLER_CHECKS)
def test_contract(check):
    check(lambda: SecondLookController(NativeGenerationController()))


@pytest.mark.parametrize(("second", "answer", "num_tasks"), [("7.0", "7", 2), ("8", "9", 3)])
def test_it_asks_again_if_two_tries_differ(second, answer, num_tasks):
    tries = iter(["\\boxed{7}", f"\\boxed{{{second}}}"])

    def respond(task):
        return "\\boxed{9}" if f"Another try gave {second}. Which" in task.input_str else next(tries)

    controller = SecondLookController(NativeGenerationController())
    controller.prompting = Prompting.for_model("tinylm/draft")
    worker = ScriptedWorker(respond)
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        assert llm.generate("How many?").answer == answer
    assert len(worker.tasks) == num_tasks
