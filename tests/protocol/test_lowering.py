"""Extra tasks are lowered for a worker that cannot serve them, and the results written back."""

import math
from typing import NamedTuple

import pytest

from scaffolding_ext.errors import InvalidTaskError, NoOutputError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.lowering import lower_branch, lower_verify, write_back_branch, write_back_verify
from scaffolding_ext.protocol.meta import CHAIN, VERIFY, purpose_of


class Reported(NamedTuple):
    """A reported alternative, as engines have it."""

    logprob: float


def reported(**probabilities):
    return {int(token[1:]): Reported(math.log(p)) for token, p in probabilities.items()}


def test_a_branch_task_becomes_one_generation_a_suffix():
    task = BranchTask(
        worker_tag="draft",
        prefix_tokens=[1, 2],
        suffixes=[[3], [], [4, 5]],
        max_tokens=7,
        temperature=0.5,
        top_p=0.9,
        top_k=8,
        seeds=[10, 11, 12],
    )
    lowered = lower_branch(task)
    assert [type(generation) for generation in lowered] == [GenerationTask] * 3
    assert [generation.input_tokens for generation in lowered] == [[1, 2, 3], [1, 2], [1, 2, 4, 5]]
    assert [generation.seed for generation in lowered] == [10, 11, 12]
    assert {(g.worker_tag, g.max_tokens, g.temperature, purpose_of(g)) for g in lowered} == {("draft", 7, 0.5, CHAIN)}
    assert {(g.top_p, g.top_k) for g in lowered} == {(0.9, 8)}
    assert task.prefix_tokens == [1, 2]

    for generation, text in zip(lowered, ("a", "", "b"), strict=True):
        generation.output_str, generation.output_tokens = text, [ord(c) for c in text]
    lowered[0].finish_reason = "length"
    lowered[0].logprobs = [reported(t97=0.5, t98=0.3), reported(t97=0.1, t98=0.9)]
    lowered[2].output_tokens, lowered[2].logprobs = None, [reported(t98=0.25)]
    write_back_branch(task, lowered)
    assert task.outputs == ["a", "", "b"]
    assert task.output_tokens == [[97], [], []]
    assert task.confidences == pytest.approx([0.5, 0.0, 0.25])  # what was told behind the one token does not count
    assert task.logprobs == [pytest.approx([math.log(0.5)]), [], []]
    assert task.finish_reasons == ["length", "stop", None]


def test_branches_without_seeds_draw_none_and_a_wrong_number_is_refused():
    assert [g.seed for g in lower_branch(BranchTask(suffixes=[[1], [2]]))] == [None, None]
    with pytest.raises(ValueError):
        lower_branch(BranchTask(suffixes=[[1], [2]], seeds=[1]))


def test_branches_with_phrasings_of_their_own_are_requests_on_these():
    task = BranchTask(prefix_tokens=[1, 2], phrasings=[[1, 2], [3, 4, 5]], suffixes=[[6], [7]])
    lowered = lower_branch(task)
    assert [generation.input_tokens for generation in lowered] == [[1, 2, 6], [3, 4, 5, 7]]
    for generation in lowered:
        generation.output_str, generation.output_tokens = "", []
    write_back_branch(task, lowered)
    assert task.on_prefix == [True, False]
    assert task.similarities is None


def test_a_gate_decides_what_is_read_and_nobody_else_may():
    task = BranchTask(prefix_tokens=[1, 2], phrasings=[[3], [4]], suffixes=[[6], [7]], least_similarity=0.9)
    with pytest.raises(InvalidTaskError, match=r"least_similarity is 0\.9, but this worker gives no hidden states"):
        lower_branch(task)
    lowered = lower_branch(task, on_prefix=[False, True])
    assert [generation.input_tokens for generation in lowered] == [[3, 6], [1, 2, 7]]
    for generation in lowered:
        generation.output_str, generation.output_tokens = "", []
    write_back_branch(task, lowered)
    assert task.on_prefix == [False, True]


def test_a_branch_without_output_is_an_error():
    task = BranchTask(suffixes=[[1]])
    with pytest.raises(NoOutputError):
        write_back_branch(task, lower_branch(task))


def test_a_verify_task_becomes_one_token_of_each_branch():
    task = VerifyTask(worker_tag="target", branches=[[1, 2], [3]], yes_token=8, no_token=9)
    lowered = lower_verify(task)
    assert [generation.input_tokens for generation in lowered] == [[1, 2], [3]]
    assert {(g.worker_tag, g.max_tokens, g.temperature, g.num_logprobs) for g in lowered} == {("target", 1, 0.0, 20)}
    assert {purpose_of(g) for g in lowered} == {VERIFY}
    lowered[0].input_tokens.append(5)
    assert task.branches == [[1, 2], [3]]


def test_p_yes_by_hand():
    for logprobs, score in [
        ([reported(t8=0.6, t9=0.2, t1=0.1)], 0.75),  # 0.6 / (0.6 + 0.2)
        ([reported(t8=0.1, t9=0.4)], 0.2),
        ([reported(t8=0.6, t1=0.3, t2=0.1)], 6 / 7),  # "no" is at most as likely as the least reported, 0.1
        ([reported(t9=0.6, t1=0.3, t2=0.1)], 1 / 7),
        ([reported(t1=0.9)], 0.5),  # neither: both are as improbable
        ([{8: Reported(-1000.0), 9: Reported(-1.0)}], 0.0),
        ([{8: Reported(-1.0), 9: Reported(-1000.0)}], 1.0),
        ([{8: Reported(-1.0), 9: Reported(-math.inf)}], 1.0),
    ]:
        task = VerifyTask(branches=[[1]], yes_token=8, no_token=9)
        lowered = lower_verify(task)
        lowered[0].logprobs = logprobs
        write_back_verify(task, lowered)
        assert task.scores == pytest.approx([score])


@pytest.mark.parametrize("logprobs", [None, [], [{}]])
def test_missing_log_probabilities_are_an_error_that_names_the_worker(logprobs):
    verify = VerifyTask(worker_tag="target", branches=[[1]], yes_token=8, no_token=9)
    lowered = lower_verify(verify)
    lowered[0].logprobs = logprobs
    with pytest.raises(NoOutputError, match=r"the worker 'target' left no log-probabilities .* asks for 20"):
        write_back_verify(verify, lowered)
    assert verify.scores is None

    branch = BranchTask(worker_tag="draft", suffixes=[[1]])
    lowered = lower_branch(branch)
    lowered[0].output_str, lowered[0].output_tokens, lowered[0].logprobs = "a", [97], logprobs
    with pytest.raises(NoOutputError, match="the worker 'draft' left no log-probabilities"):
        write_back_branch(branch, lowered)
