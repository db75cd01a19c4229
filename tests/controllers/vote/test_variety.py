"""Samples of one prompt differ: they have a temperature where nobody set one."""

import pytest

from scaffolding_ext.controllers.basic.best_of_n import BestOfNController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.draft_target.coin import Coin
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.vote.deepconf import DeepConfController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.sampling_params import SAMPLE_TEMPERATURE
from scaffolding_ext.protocol.worker import WorkerTag, WrappingWorker
from scaffolding_ext.testing import ScriptedWorker

PLAIN = {"max_tokens": 20}
GREEDY = NativeGenerationController(PLAIN | {"temperature": 0.0})


def run(controller, respond=None, **request):
    worker = ScriptedWorker(respond or (lambda task: f"\\boxed{{{task.seed % 3}}}"))
    with ScaffoldingLlm(controller, {WorkerTag.GENERATION: worker}, seed=0) as llm:
        return llm.generate("p", **request), worker


def temperatures(worker):
    return {task.temperature for task in worker.tasks}


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
    set_by_controller, set_by_request, expected, events
):
    vote = MajorityVoteController(NativeGenerationController(PLAIN | set_by_controller), 4, allocation=None)
    result, worker = run(vote, **set_by_request)
    assert temperatures(worker) == {expected}
    assert bool(events(result, "sampling")) == (expected == SAMPLE_TEMPERATURE)


def test_a_sub_controller_may_stream_and_its_probes_keep_their_own():
    controller = MajorityVoteController(
        DynasorCoTController(max_tokens=60, rule="consecutive", chunk_size=16), 2, allocation=None
    )
    _, worker = run(controller, lambda task: "think " * 30 if task.max_tokens > 20 else "7}")
    chains = {task.temperature for task in worker.tasks if task.max_tokens == 60}
    probes = {task.temperature for task in worker.tasks if task.max_tokens == 20}
    assert (chains, probes) == ({SAMPLE_TEMPERATURE}, {0.6})


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_model_that_says_how_it_is_sampled_is_sampled_so(wrapped, events):
    """Its top-p and top-k hold, too: a temperature of ours would switch them off."""
    worker = ScriptedWorker(lambda task: f"\\boxed{{{task.seed % 3}}}")
    worker.default_temperature = 0.6
    vote = MajorityVoteController(MajorityVoteController(NativeGenerationController(), 2), 2, allocation=None)
    served = WrappingWorker(worker) if wrapped else worker
    with ScaffoldingLlm(vote, {"generation": served}, seed=0) as llm:
        result = llm.generate("Q?")
        assert temperatures(worker) == {None}
        assert not events(result, "sampling")
        with pytest.raises(ConfigError, match=r"temperature.*all samples of a prompt are equal"):
            llm.generate("Q?", temperature=0.0)


def test_one_sample_is_drawn_as_the_worker_draws():
    _, worker = run(MajorityVoteController(NativeGenerationController(PLAIN), 1))
    assert temperatures(worker) == {None}


@pytest.mark.parametrize("request_sets", [{"temperature": 0.0}, {"sample_num": 4}])
def test_several_greedy_samples_are_refused(request_sets):
    """Either the request brings the temperature, or the number of samples."""
    samples, params = (4, PLAIN) if "temperature" in request_sets else (1, PLAIN | {"temperature": 0.0})
    with pytest.raises(ConfigError, match=r"temperature.*all samples of a prompt are equal"):
        run(MajorityVoteController(NativeGenerationController(params), samples), **request_sets)


@pytest.mark.parametrize(
    "controller",
    [
        BestOfNController(GREEDY, reward=len, default_sample_num=4),
        MajorityVoteController(MajorityVoteController(GREEDY, 1), 2),
        MajorityVoteController(DynasorCoTController(sampling_params={"temperature": 0.0}), 2),
        DeepConfController(4, sampling_params={"temperature": 0}),
        SearchController("Beam", sampling_params={"temperature": 0}),
    ],
)
def test_several_greedy_samples_are_refused_wherever_the_temperature_is_set(controller):
    with pytest.raises(ConfigError, match="all samples of a prompt are equal"):
        run(controller)


@pytest.mark.parametrize(("num_chains", "drawn_at"), [(2, SAMPLE_TEMPERATURE), (1, None)])
def test_chains_of_draft_and_target_differ_whoever_drafts(num_chains, drawn_at, events):
    plain = NativeGenerationController(PLAIN)
    rule = Coin(rate=0.5)
    made = ConformalDraftTargetController(plain, plain, rule=rule, num_chains=num_chains, max_turns=8, draft_tokens=4)
    workers = {tag: ScriptedWorker(lambda task: "think " * 9) for tag in (WorkerTag.DRAFT, WorkerTag.TARGET)}
    with ScaffoldingLlm(made, workers, seed=0) as llm:
        result = llm.generate("p")
        if num_chains > 1:
            with pytest.raises(ConfigError, match="all samples of a prompt are equal"):
                llm.generate("p", temperature=0.0)
    for worker in workers.values():
        assert {task.temperature for task in worker.tasks if "boxed" not in task.input_str} == {drawn_at}
    assert len(events(result, "sampling")) == (num_chains > 1)


def test_one_greedy_sample_is_not_refused():
    _, worker = run(MajorityVoteController(NativeGenerationController(PLAIN | {"temperature": 0.0}), 1))
    assert temperatures(worker) == {0.0}


@pytest.mark.parametrize(("respond", "is_told"), [(lambda task: "\\boxed{3}", True), (None, False)])
def test_a_vote_on_one_and_the_same_text_is_told(respond, is_told, events):
    result, _ = run(MajorityVoteController(NativeGenerationController(PLAIN), 4, allocation=None), respond)
    assert [event["num_samples"] for event in events(result, "equal_samples")] == [4] * is_told
