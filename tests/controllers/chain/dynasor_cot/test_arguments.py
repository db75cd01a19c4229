"""Dynasor-CoT's arguments: presets, defaults, what is refused, and how stack files and requests say them."""

import pytest

from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController, DynasorGenerationController
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.controllers.chain.probing import ProbeSchedule
from scaffolding_ext.controllers.chain.shorthand import EFFORTS
from scaffolding_ext.controllers.chain.stopping.agreement import Consecutive, Window
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.stack.build import load_stack
from scaffolding_ext.testing import ScriptedWorker

PROMPT = "Question: "


def test_presets():
    chosen = {effort: DynasorCoTController(effort=effort) for effort in EFFORTS}
    figures = {effort: (each.rule.threshold, each.schedule.chunk_size) for effort, each in chosen.items()}
    assert figures == {"mild": (8, 64), "low": (5, 64), "mid": (3, 64), "high": (2, 64), "crazy": (2, 32)}
    assert all(each.schedule.first_probe == each.schedule.chunk_size for each in chosen.values())


@pytest.mark.parametrize("arguments", [{}, {"certainty_threshold": 3}, {"effort": "mid"}, {"rule": "consecutive"}])
def test_the_default_is_dynasors_own_rule_and_reads_no_log_probabilities(arguments):
    chosen = DynasorCoTController(**arguments)
    assert type(chosen.rule) is Consecutive
    assert (chosen.rule.threshold, chosen.schedule.chunk_size) == EFFORTS["mid"]
    assert chosen.needs.num_logprobs == 0
    assert chosen.probe.sampling_params == {"temperature": 0.6, "top_p": 0.95, "max_tokens": 20}


@pytest.mark.parametrize(
    ("build", "arguments", "key"),
    [
        (DynasorCoTController, {"chunk_size": 0}, "chunk_size"),
        (DynasorCoTController, {"mode": "both"}, "mode"),
        (DynasorCoTController, {"rule": "majority"}, "rule"),
        (DynasorCoTController, {"hedge_match": "regex"}, "hedge_match"),
        (DynasorCoTController, {"streaming": True, "mode": "chunk"}, "streaming"),
        (DynasorCoTController, {"effort": "huge"}, "effort"),
        (DynasorCoTController, {"sampling_params": {"max_tokens": 5}}, "sampling_params"),
        (ProbeSchedule, {"growth": 0.5}, "growth"),
        (AnswerProbe, {"sampling_params": {"max_tokens": 5}}, "sampling_params"),
        (AnswerProbe, {"sampling_params": {"tempreature": 5}}, "sampling_params"),
        (Window, {"share": 0.0}, "share"),
    ],
)
def test_bad_arguments_name_their_key(build, arguments, key):
    with pytest.raises(ConfigError) as caught:
        build(**arguments)
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("arguments", "key", "name"),
    [
        ({"effort": "mid", "chunk_size": 16}, "effort", "chunk_size"),
        ({"effort": "mid", "chunk_size": 64}, "effort", "chunk_size"),
        ({"effort": "mid", "certainty_threshold": 3}, "effort", "certainty_threshold"),
        ({"effort": "mid", "schedule": ProbeSchedule(8)}, "schedule", "chunk_size"),
        ({"effort": "mid", "rule": Window(4)}, "rule", "certainty_threshold"),
        ({"chunk_size": 64, "schedule": ProbeSchedule(8)}, "schedule", "chunk_size"),
        ({"hedge_match": "word", "probe": AnswerProbe()}, "probe", "hedge_match"),
    ],
)
def test_what_an_object_makes_meaningless_is_refused_beside_it(arguments, key, name):
    with pytest.raises(ConfigError, match=name) as caught:
        DynasorCoTController(**arguments)
    assert caught.value.key == key


PLAIN = {"max_tokens": 100, "certainty_threshold": 2, "chunk_size": 16, "hedge_match": "substring"}
OBJECTS = {
    "max_tokens": 100,
    "rule": {"type": "consecutive", "args": {"threshold": 2}},
    "schedule": {"type": "ProbeSchedule", "args": {"chunk_size": 16}},
    "probe": {"type": "AnswerProbe", "args": {"hedge_match": "substring"}},
}


@pytest.mark.parametrize("arguments", [PLAIN, OBJECTS])
def test_a_stack_file_says_it_plainly_or_by_objects(arguments, events, positions):
    worker = {"type": "ScriptedWorker", "args": {"respond": "5} so I know. " * 20}}
    stack = {"controller": {"type": "DynasorCoTController", "args": arguments}, "workers": {"generation": worker}}
    with load_stack(stack) as llm:
        result = llm.generate(PROMPT)
    assert positions(result) == [16, 32, 48, 64, 80, 96]
    assert [event["hedged"] for event in events(result, "probe")] == [True] * 6
    assert result.exit_reason == "length"


def test_upstreams_name_and_arguments_load_from_a_stack_file(tmp_path, positions):
    path = tmp_path / "stack.yaml"
    path.write_text(
        """
controller:
  type: DynasorGenerationController
  args: {generation_dir: some/folder, max_tokens: 100, certainty_threshold: 2, chunk_size: 16, streaming: false}
workers:
  generation: {type: ScriptedWorker, args: {respond: "7} and then some more thinking, and more of it"}}
prompt: null
"""
    )
    with load_stack(str(path)) as llm:
        loaded = llm.prototype_controller
        result = llm.generate(PROMPT)
    assert type(loaded) is DynasorGenerationController
    assert (loaded.max_tokens, loaded.rule.threshold, loaded.schedule.chunk_size) == (100, 2, 16)
    assert loaded.sampling_params == {"temperature": 0.6, "top_p": 0.95}
    assert (result.answer, result.exit_reason) == ("7", "certain")
    assert positions(result) == [0, 16]  # as upstream's: the first probe comes before the chain


def test_a_request_brings_sampling_fields_and_nothing_unknown():
    worker = ScriptedWorker("no answer here")
    with ScaffoldingLlm(DynasorCoTController(), {"generation": worker}) as llm:
        llm.generate("q", temperature=0.2, max_tokens=5)
        assert (worker.tasks[0].temperature, worker.tasks[0].max_tokens) == (0.2, 5)
        with pytest.raises(ConfigError, match="'temprature', which is not a sampling field"):
            llm.generate("q", temprature=0.2)
