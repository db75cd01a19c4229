"""Probes that are held to a form, where the engine can do that."""

from __future__ import annotations

import pytest

from scaffolding_ext import DynasorCoTController, ScaffoldingLlm
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.looking import Looker, LookNeeds, LookTasks
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import PROBE, purpose_of
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.testing.controller_contract import contract_reply

GUIDE = {"regex": r"[0-9]+\}"}


@pytest.mark.parametrize("guide", [None, GUIDE])
@pytest.mark.parametrize("mode", ["stream", "chunk"])
def test_a_guide_goes_with_the_probes_alone_and_only_where_it_is_asked_for(guide, mode):
    worker = ScriptedWorker(contract_reply)
    controller = DynasorCoTController(
        rule="consecutive", chunk_size=24, mode=mode, probe=AnswerProbe(guided_decoding=guide)
    )
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        assert llm.generate("Question 17").answer == "17"
    guides = {
        purpose_of(task) == PROBE: (task.custom_input_params or {}).get("guided_decoding") for task in worker.tasks
    }
    assert guides == {True: guide, False: None}


def test_a_guide_is_a_mapping():
    with pytest.raises(ConfigError, match=r"guided_decoding: is '\[0-9\]'; give a mapping"):
        AnswerProbe(guided_decoding="[0-9]")


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
    asked = LookTasks(answer=task)
    look = Looker(AnswerProbe(), LookNeeds()).read(Prefix(3, "abc", None), asked, family_named(name))
    assert look.closes is closes
