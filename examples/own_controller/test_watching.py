import pytest
from pattern_stop import PatternStopController
from share_rule import ShareOfProbes

from scaffolding_ext import ConfigError, DynasorCoTController, ScaffoldingLlm
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.testing.controller_contract import CONTROLLER_CHECKS

CONTROLLERS = [
    lambda: PatternStopController("Again"),
    lambda: PatternStopController("no such text"),
    lambda: DynasorCoTController(chunk_size=24, rule=ShareOfProbes()),
]


@pytest.mark.parametrize("make_controller", CONTROLLERS)
@pytest.mark.parametrize("check", CONTROLLER_CHECKS)
def test_contract(check, make_controller):
    check(make_controller)


def test_the_pattern_ends_thinking():
    def respond(task):
        return "7}" if task.input_str.endswith("{") else "a thought. Total: 7. And then many more thoughts."

    with ScaffoldingLlm(PatternStopController("Total: [0-9]+"), {"generation": ScriptedWorker(respond)}) as llm:
        result = llm.generate("How many?")
    assert (result.answer, result.exit_reason) == ("7", "pattern")
    assert result.program.trace[0]["position"] == 32  # the first look after the pattern
    assert result.program.ledger.to_json()["by_purpose"]["chain"]["decoded"] == 32


def test_a_share_of_the_probes_is_enough():
    guesses = iter(["7}", "8}", "7}", "7}"])

    def respond(task):
        return next(guesses) if task.input_str.endswith("{") else "thinking " * 99

    controller = DynasorCoTController(chunk_size=24, rule=ShareOfProbes(0.75))
    with ScaffoldingLlm(controller, {"generation": ScriptedWorker(respond)}) as llm:
        result = llm.generate("How many?")
    assert (result.answer, result.exit_reason) == ("7", "certain")


def test_a_wrong_pattern_is_named():
    with pytest.raises(ConfigError, match="not a regular expression"):
        PatternStopController("(")
