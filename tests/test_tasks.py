"""Tags, purposes, token counts, and what the extra tasks become where a worker cannot serve them."""

import dataclasses
import math
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Task
from scaffolding_ext.tasks import (
    CHAIN,
    CHAIN_START,
    PROBE,
    SCORE,
    VERIFY,
    BranchTask,
    CompareTask,
    Purpose,
    ScoreTask,
    TokenCounts,
    VerifyTask,
    WorkerTag,
    lower_branch,
    lower_verify,
    output_of,
    purpose_of,
    raise_branch,
    raise_verify,
    set_purpose,
    set_token_counts,
    token_counts_of,
)


class Reported(NamedTuple):
    """A reported alternative, as engines have it."""

    logprob: float


def reported(**probabilities):
    return {int(token[1:]): Reported(math.log(p)) for token, p in probabilities.items()}


def test_worker_tags_and_their_values_are_the_same_key():
    assert {"generation": 1}[WorkerTag.GENERATION] == 1
    assert {WorkerTag.REWARD: 1}["reward"] == 1
    assert WorkerTag("draft") is WorkerTag.DRAFT
    assert [str(tag) for tag in WorkerTag] == ["generation", "draft", "target", "reward", "compare"]
    assert f"{Purpose.CHAIN}" == str(Purpose.CHAIN) == "chain"


# ---- purposes and counts


@pytest.mark.parametrize(
    ("task", "purpose"),
    [
        (GenerationTask(), CHAIN_START),
        (StreamGenerationTask(), CHAIN_START),
        (BranchTask(), CHAIN_START),
        (ScoreTask(), SCORE),
        (VerifyTask(), VERIFY),
    ],
)
def test_purposes_have_defaults_and_can_be_set(task, purpose):
    assert purpose_of(task) == purpose
    set_purpose(task, PROBE)
    set_purpose(task, CHAIN)
    assert purpose_of(task) == CHAIN
    assert purpose_of(type(task)()) == purpose  # of this task alone


def test_setting_a_purpose_keeps_other_parameters():
    task = GenerationTask(custom_input_params={"other": 1})
    set_purpose(task, PROBE)
    assert task.custom_input_params["other"] == 1
    assert purpose_of(GenerationTask(custom_input_params={"other": 1})) == CHAIN_START


def test_token_counts_subtract_and_know_what_was_computed():
    counts = TokenCounts(5, 3, 2)
    assert counts.minus(TokenCounts(1, 1, 1)) == TokenCounts(4, 2, 1)
    assert counts.computed == 8


def test_recorded_counts_win_over_the_estimate():
    task = GenerationTask(input_tokens=[1, 2, 3], output_tokens=[4, 5])
    assert token_counts_of(task) == TokenCounts(decoded=2, prefilled=3)
    set_token_counts(task, TokenCounts(2, 1, 2))
    assert token_counts_of(task) == TokenCounts(2, 1, 2)


def test_the_estimate_needs_output_ids():
    assert token_counts_of(GenerationTask(input_tokens=[1], output_str="text")) is None
    assert token_counts_of(GenerationTask(input_str="text", output_tokens=[])) == TokenCounts()


@pytest.mark.parametrize("task_type", [ScoreTask, BranchTask, VerifyTask])
def test_counts_of_other_tasks_are_recorded_or_unknown(task_type):
    task = task_type(custom_output_params={"other": 1})
    assert token_counts_of(task) is None
    set_token_counts(task, TokenCounts(0, 9))
    assert token_counts_of(task) == TokenCounts(0, 9)
    assert task.custom_output_params["other"] == 1
    bare = task_type()
    set_token_counts(bare, TokenCounts(1))
    assert token_counts_of(bare) == TokenCounts(1)


def test_output_of_refuses_silence_but_not_an_empty_text():
    assert output_of(GenerationTask(output_str="")) == ""
    with pytest.raises(NoOutputError, match="worker draft left no output in a GenerationTask"):
        output_of(GenerationTask(worker_tag=WorkerTag.DRAFT))


# ---- lowering


def test_a_branch_task_becomes_one_generation_a_suffix():
    task = BranchTask(
        worker_tag="draft",
        prefix_tokens=[1, 2],
        suffixes=[[3], [], [4, 5]],
        max_tokens=7,
        temperature=0.5,
        seeds=[10, 11, 12],
    )
    lowered = lower_branch(task)
    assert [type(generation) for generation in lowered] == [GenerationTask] * 3
    assert [generation.input_tokens for generation in lowered] == [[1, 2, 3], [1, 2], [1, 2, 4, 5]]
    assert [generation.seed for generation in lowered] == [10, 11, 12]
    assert {(g.worker_tag, g.max_tokens, g.temperature, purpose_of(g)) for g in lowered} == {("draft", 7, 0.5, CHAIN)}
    assert task.prefix_tokens == [1, 2]

    for generation, text in zip(lowered, ("a", "", "b"), strict=True):
        generation.output_str, generation.output_tokens = text, [ord(c) for c in text]
    lowered[0].logprobs = [reported(t97=0.5, t98=0.3), reported(t97=0.1, t98=0.9)]
    lowered[2].output_tokens = None
    raise_branch(task, lowered)
    assert task.outputs == ["a", "", "b"]
    assert task.output_tokens == [[97], [], []]
    assert task.confidences == pytest.approx([0.7, 0.0, 0.0])  # the mean of 0.5 and 0.9


def test_branches_without_seeds_draw_none_and_a_wrong_number_is_refused():
    assert [g.seed for g in lower_branch(BranchTask(suffixes=[[1], [2]]))] == [None, None]
    with pytest.raises(ValueError):
        lower_branch(BranchTask(suffixes=[[1], [2]], seeds=[1]))


def test_a_branch_without_output_is_an_error():
    task = BranchTask(suffixes=[[1]])
    with pytest.raises(NoOutputError):
        raise_branch(task, lower_branch(task))


def test_a_verify_task_becomes_one_token_of_each_branch():
    task = VerifyTask(worker_tag="target", branches=[[1, 2], [3]], yes_token=8, no_token=9)
    lowered = lower_verify(task)
    assert [generation.input_tokens for generation in lowered] == [[1, 2], [3]]
    assert {(g.worker_tag, g.max_tokens, g.temperature, g.num_logprobs) for g in lowered} == {("target", 1, 0.0, 20)}
    assert {purpose_of(g) for g in lowered} == {VERIFY}
    lowered[0].input_tokens.append(5)
    assert task.branches == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("logprobs", "score"),
    [
        ([reported(t8=0.6, t9=0.2, t1=0.1)], 0.75),  # 0.6 / (0.6 + 0.2)
        ([reported(t8=0.1, t9=0.4)], 0.2),
        ([reported(t8=0.6, t1=0.3, t2=0.1)], 6 / 7),  # "no" is at most as likely as the least reported, 0.1
        ([reported(t9=0.6, t1=0.3, t2=0.1)], 1 / 7),
        ([reported(t1=0.9)], 0.5),  # neither
        ([{8: Reported(-1000.0), 9: Reported(-1.0)}], 0.0),
        ([{8: Reported(-1.0), 9: Reported(-1000.0)}], 1.0),
        ([{8: Reported(-1.0), 9: Reported(-math.inf)}], 1.0),
        ([], 0.5),
        (None, 0.5),
    ],
)
def test_p_yes_by_hand(logprobs, score):
    task = VerifyTask(branches=[[1]], yes_token=8, no_token=9)
    lowered = lower_verify(task)
    lowered[0].logprobs = logprobs
    raise_verify(task, lowered)
    assert task.scores == pytest.approx([score])


@settings(deadline=None)
@given(st.floats(0.001, 0.5), st.floats(0.001, 0.5))
def test_p_yes_is_the_share_of_yes(yes, no):
    task = VerifyTask(branches=[[1]], yes_token=8, no_token=9)
    lowered = lower_verify(task)
    lowered[0].logprobs = [reported(t8=yes, t9=no)]
    raise_verify(task, lowered)
    assert task.scores[0] == pytest.approx(yes / (yes + no))


def test_a_compare_task_holds_answers_and_gets_classes():
    task = CompareTask(worker_tag=WorkerTag.COMPARE, answers=["1/2", None, "0.5"])
    assert isinstance(task, Task)
    assert task.classes is None
    assert {field.name for field in dataclasses.fields(CompareTask)} - {f.name for f in dataclasses.fields(Task)} == {
        "answers",
        "classes",
    }
    assert CompareTask().answers is not CompareTask().answers
    assert token_counts_of(task) is None
