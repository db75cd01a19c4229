"""Who sets a deadline: the stack file, an evaluation by the kind of the question, or one request."""

from __future__ import annotations

from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.request.program import current_program
from scaffolding_ext.scheduling import EarliestDeadline
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker

STACK = {
    "controller": {"type": "NativeGenerationController"},
    "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "4"}}},
    "scheduling": {"type": "EarliestDeadline"},
}


def seconds_given(task: Any) -> str:
    """The worker's answer: how long after its arrival the request is wanted, in whole seconds."""
    program = current_program()
    assert program is not None
    return "none" if program.lifetime.deadline is None else f"{program.lifetime.deadline - program.lifetime.began:.0f}"


def host(**options: Any) -> ScaffoldingLlm:
    return ScaffoldingLlm(NativeGenerationController(), {"generation": ScriptedWorker(seconds_given)}, **options)


def test_a_request_has_its_own_deadline_or_the_hosts_or_its_time_out() -> None:
    with host(deadline=10, scheduling=EarliestDeadline()) as llm:
        given = [{}, {"deadline": 3}, {"timeout": 20}]
        assert [llm.generate("2+2?", **each).outputs[0].text for each in given] == ["10", "3", "10"]
    with host() as llm:
        assert [llm.generate("2+2?", **each).outputs[0].text for each in ({}, {"timeout": 20})] == ["none", "20"]


def test_a_stack_file_sets_the_hosts_deadline() -> None:
    with build_stack(StackConfig.model_validate(STACK | {"deadline": 12.5})) as llm:
        assert llm.deadline == 12.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"deadline": 0}, "deadline"),
    ],
)
def test_deadlines_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(STACK | changes)
