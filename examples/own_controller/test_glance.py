import pytest
from glance import GlanceController

from scaffolding_ext import ConfigError, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.testing.controller_contract import CONTROLLER_CHECKS


def make_controller():
    return GlanceController(NativeGenerationController())


@pytest.mark.parametrize("check", CONTROLLER_CHECKS)
def test_contract(check):
    check(make_controller)


def test_it_thinks_if_the_guesses_differ():
    guesses = iter(["7}", "8}"])

    def respond(task):
        return next(guesses) if task.input_str.endswith("{") else "I count again: \\boxed{8}"

    worker = ScriptedWorker(respond)
    with ScaffoldingLlm(make_controller(), {"generation": worker}) as llm:
        result = llm.generate("How many?")
    assert (result.answer, result.exit_reason) == ("8", "end")
    assert result.program.trace[0]["answers"] == ["7", "8"]
    assert result.program.ledger.to_json()["by_purpose"]["probe"]["decoded"] == 4
    assert len(worker.tasks) == 3


def test_one_guess_cannot_agree():
    with pytest.raises(ConfigError, match="num_guesses"):
        GlanceController(NativeGenerationController(), num_guesses=1)
