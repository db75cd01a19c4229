"""The log-probability of each token in a worker's results, if it is known which one that is."""

import math
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from scaffolding_ext.controllers.basic.best_of_n import BestOfNController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.task_results import (
    highest_logprobs,
    mean_token_probability,
    reported_logprobs,
    sampled_logprobs,
)
from scaffolding_ext.testing import ScriptedWorker


class Entry(NamedTuple):
    """A reported token, as engines have it."""

    logprob: float


STEPS = [{7: Entry(-3.0), 9: Entry(-0.1)}, {4: Entry(-0.5), 9: Entry(-1.0)}]
ALONE = [{7: Entry(-3.0)}, {4: Entry(-0.5)}]


def test_the_tokens_that_were_written_count():
    cases = [
        ([7, 4], STEPS, [-3.0, -0.5]),
        ([7], STEPS, [-3.0]),  # TensorRT-LLM cuts a stop word from the ids alone
        ([], STEPS, []),
        (None, ALONE, [-3.0, -0.5]),  # one token a place: it is the one that was written
        (None, [], []),
        (None, SimpleNamespace(token_logprobs=[None, -0.2, -0.3]), [-0.2, -0.3]),  # an OpenAI server's, with echo
        ([1, 2], SimpleNamespace(token_logprobs=[-0.2, -0.3, -0.4]), [-0.2, -0.3]),
    ]
    assert [
        (ids, reported, expected, found)
        for ids, reported, expected in cases
        if (found := sampled_logprobs(ids, reported)) != expected
    ] == []


def test_what_cannot_be_known_is_refused():
    for ids, reported, why in [
        (None, STEPS, "of several tokens at one position, without ids that say which was written"),
        ([7, 4, 4], STEPS, "of 2 of 3 tokens"),
        ([1, 2], SimpleNamespace(token_logprobs=[-0.2]), "of 1 of 2 tokens"),
        ([7, 5], STEPS, "of only the likeliest tokens, without token 5, which was written"),
    ]:
        with pytest.raises(NoOutputError, match=why):
            sampled_logprobs(ids, reported)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_log_probability_that_is_no_probability_is_refused(wrong):
    step = {7: Entry(wrong), 9: Entry(-0.1)}
    for read in (
        lambda: sampled_logprobs([7], [step]),
        lambda: sampled_logprobs(None, [{7: Entry(wrong)}]),
        lambda: sampled_logprobs(None, SimpleNamespace(token_logprobs=[wrong])),
        lambda: mean_token_probability([-0.1, wrong]),
        lambda: highest_logprobs(step),
    ):
        with pytest.raises(NoOutputError, match="reported NaN or infinity"):
            read()
    assert sampled_logprobs([9], [step]) == [-0.1]


@pytest.mark.parametrize(("text", "ids"), [("a", [7]), ("a", None), (None, [7])])
def test_a_task_that_brought_none_is_refused(text, ids):
    task = GenerationTask(output_str=text, output_tokens=ids, num_logprobs=1)
    with pytest.raises(NoOutputError, match="returned no log-probabilities, though num_logprobs is 1"):
        reported_logprobs(task)


@pytest.mark.parametrize(("text", "ids"), [("", None), ("", []), ("�", [])])
def test_a_task_without_a_token_has_none_to_bring(text, ids):
    assert reported_logprobs(GenerationTask(output_str=text, output_tokens=ids)) == []


def test_the_geometric_mean_of_probabilities():
    assert mean_token_probability([math.log(0.5), math.log(0.5)]) == pytest.approx(0.5)
    assert mean_token_probability([math.log(0.9), math.log(0.4)]) == pytest.approx(0.6)
    assert mean_token_probability([-math.inf, 0.0]) == 0.0
    assert mean_token_probability([0.1]) == 1.0  # float32 logits round
    assert mean_token_probability([]) == 0.0


DRAWN = NativeGenerationController({"temperature": 1.0})


@pytest.mark.parametrize(
    "controller",
    [
        BestOfNController(DRAWN, reward="mean_logprob", default_sample_num=3),
        MajorityVoteController(DRAWN, 3, allocation=None, weight="mean_logprob"),
    ],
    ids=["best_of_n", "vote"],
)
def test_a_probability_that_nobody_knows_decides_nothing(controller):
    worker = ScriptedWorker(
        "so it is 7 \\boxed{7}",
        logprobs=lambda task, index: dict.fromkeys(range(128), math.nan if task is worker.tasks[0] else -1.0),
    )
    with (
        ScaffoldingLlm(controller, {"generation": worker}, seed=0) as llm,
        pytest.raises(NoOutputError, match="reported NaN or infinity"),
    ):
        llm.generate("question")
