"""Samples of one prompt differ: they have a temperature where nobody set one, and copies are told."""

import logging

import pytest

from scaffolding_ext.controllers.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.majority_vote import MajorityVoteController
from scaffolding_ext.controllers.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.sampling_params import SAMPLE_TEMPERATURE
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.worker_tags import WorkerTag

PLAIN = {"max_tokens": 20}


def run(controller, respond=None, **request):
    worker = ScriptedWorker(respond or (lambda task: f"\\boxed{{{task.seed % 3}}}"))
    with ScaffoldingLlm(controller, {WorkerTag.GENERATION: worker}, seed=0) as llm:
        return llm.generate("p", **request), worker


def temperatures(worker):
    return {task.temperature for task in worker.tasks}


def events(result, name):
    return [event for event in result.program.trace if event["event"] == name]


@pytest.mark.parametrize(
    ("set_by_controller", "set_by_request", "expected"),
    [
        ({}, {}, SAMPLE_TEMPERATURE),
        ({"temperature": 0.4}, {}, 0.4),
        ({}, {"temperature": 1.1}, 1.1),
        ({"top_p": 0.9}, {}, None),  # it samples: the worker knows at which temperature
        ({"top_k": 5}, {}, None),
        ({}, {"temperature": None}, None),  # the request wants the worker's own
    ],
)
def test_samples_have_the_temperature_that_was_set_or_else_one_at_which_they_differ(
    set_by_controller, set_by_request, expected
):
    vote = MajorityVoteController(NativeGenerationController(PLAIN | set_by_controller), 4, allocation=None)
    result, worker = run(vote, **set_by_request)
    assert temperatures(worker) == {expected}
    assert bool(events(result, "sampling")) == (expected == SAMPLE_TEMPERATURE)


def test_a_sub_controller_may_stream_and_its_probes_keep_their_own():
    controller = MajorityVoteController(DynasorCoTController(max_tokens=60, chunk_size=16), 2, allocation=None)
    _, worker = run(controller, lambda task: "think " * 30 if task.max_tokens > 20 else "7}")
    chains = {task.temperature for task in worker.tasks if task.max_tokens == 60}
    probes = {task.temperature for task in worker.tasks if task.max_tokens == 20}
    assert (chains, probes) == ({SAMPLE_TEMPERATURE}, {0.6})


def test_one_sample_is_drawn_as_the_worker_draws():
    _, worker = run(MajorityVoteController(NativeGenerationController(PLAIN), 1))
    assert temperatures(worker) == {None}


@pytest.mark.parametrize("where", ["controller", "request"])
def test_several_greedy_samples_are_refused(where):
    params, request = ({"temperature": 0.0}, {}) if where == "controller" else ({}, {"temperature": 0.0})
    with pytest.raises(ConfigError, match=r"temperature.*all samples of a prompt are alike"):
        run(MajorityVoteController(NativeGenerationController(PLAIN | params), 4), **request)


def test_one_greedy_sample_is_not_refused():
    _, worker = run(MajorityVoteController(NativeGenerationController(PLAIN | {"temperature": 0.0}), 1))
    assert temperatures(worker) == {0.0}


@pytest.mark.parametrize(("texts", "told"), [(["a", "a", "a"], True), (["a", "a", "b"], False)])
def test_a_vote_of_copies_says_so(texts, told, caplog):
    replies = iter(texts)
    with caplog.at_level(logging.WARNING):
        result, _ = run(
            MajorityVoteController(NativeGenerationController(PLAIN), 3, allocation=None), lambda task: next(replies)
        )
    assert ("the same text" in caplog.text) == told
    assert bool(events(result, "warning")) == told
