"""Readings of a response to a probe."""

from __future__ import annotations

import pytest

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.controllers.chain.probing import ProbeNeeds, Prober
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.protocol import GenerationTask


@pytest.mark.parametrize(
    ("name", "response", "closes"),
    [
        ("deepseek_r1", "4}\n</think>", True),
        ("deepseek_r1", "4} as `</think>` says", False),  # a quoted mark closes nothing
        ("deepseek_r1", "4}\n", False),
        ("instruct", "4}\n</think>", False),  # nothing to close
    ],
)
def test_a_response_closes_thinking_by_an_unquoted_mark(name: str, response: str, closes: bool) -> None:
    task = GenerationTask(output_str=response)
    look = Prober(AnswerProbe(), ProbeNeeds()).read(Prefix(3, "abc", None), task, family_named(name))
    assert look.closes is closes


def test_needs_of_another_type_are_refused_when_the_controller_is_built() -> None:
    class Wrong(StoppingRule):
        needs = Needs()  # type: ignore[assignment]

        def __call__(self, probes: object) -> bool:
            return False

    with pytest.raises(ConfigError, match="rule: has needs of type Needs; give ProbeNeeds"):
        DynasorCoTController(rule=Wrong())
