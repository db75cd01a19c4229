"""Tags, purposes, token counts, and what the extra tasks become where a worker cannot serve them."""

import copy
import types
from enum import Enum

import pytest

from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Worker
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.meta import (
    CHAIN,
    CHAIN_START,
    PROBE,
    SCORE,
    VERIFY,
    Meta,
    Purpose,
    TokenCounts,
    meta_of,
    note,
    purpose_of,
    token_counts_of,
)
from scaffolding_ext.protocol.task_results import finish_reason_of, output_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WorkerTag, worker_for, worker_key


def test_worker_tags_and_their_values_are_the_same_key():
    assert {"generation": 1}[WorkerTag.GENERATION] == 1
    assert {WorkerTag.REWARD: 1}["reward"] == 1
    assert WorkerTag("draft") is WorkerTag.DRAFT
    assert [str(tag) for tag in WorkerTag] == ["generation", "draft", "target", "reward", "compare"]
    assert f"{Purpose.CHAIN}" == str(Purpose.CHAIN) == "chain"


class TheirTag(Enum):
    """As upstream has it: a plain enum a controller class."""

    GENERATION = "generation"
    REWARD = "reward"


def test_a_worker_is_found_by_the_value_of_its_tag_whoevers_enum_it_is_of():
    for tag in ["generation", WorkerTag.GENERATION, TheirTag.GENERATION]:
        for key in ["generation", WorkerTag.GENERATION, TheirTag.GENERATION]:
            worker = Worker()
            assert worker_for({TheirTag.REWARD: Worker(), key: worker}, tag) is worker
            assert {key: worker}[worker_key({key: worker}, tag)] is worker
            assert worker_for({TheirTag.REWARD: worker}, tag) is None
            assert worker_key({}, tag) is None


def test_an_equal_key_goes_before_one_of_the_same_value():
    by_name, by_member = Worker(), Worker()
    for workers in (
        {"generation": by_name, TheirTag.GENERATION: by_member},
        {TheirTag.GENERATION: by_member, "generation": by_name},
    ):
        assert worker_for(workers, WorkerTag.GENERATION) is by_name
        assert worker_for(workers, TheirTag.GENERATION) is by_member


# ---- purposes and counts


def test_purposes_have_defaults_and_can_be_set():
    for task, purpose in [
        (GenerationTask(), CHAIN_START),
        (StreamGenerationTask(), CHAIN_START),
        (BranchTask(), CHAIN_START),
        (ScoreTask(), SCORE),
        (VerifyTask(), VERIFY),
    ]:
        assert purpose_of(task) == purpose
        note(task, purpose=PROBE)
        note(task, purpose=CHAIN)
        assert purpose_of(task) == CHAIN
        assert purpose_of(type(task)()) == purpose  # of this task alone


def test_a_copy_keeps_its_own_meta():
    task = StreamGenerationTask(custom_input_params={"other": 1})
    note(task, purpose=PROBE)
    note(task, turn_start=7)
    twin = copy.copy(task)
    note(task, counts=TokenCounts(5, 3, 2))
    assert meta_of(task) == Meta(purpose=PROBE, turn_start=7, counts=TokenCounts(5, 3, 2))
    assert meta_of(twin) == Meta(purpose=PROBE, turn_start=7)
    assert task.custom_input_params == twin.custom_input_params == {"other": 1}
    assert meta_of(copy.deepcopy(task)) == meta_of(task)
    assert meta_of(GenerationTask()) == Meta()


def test_recorded_counts_win_over_the_estimate():
    task = GenerationTask(input_tokens=[1, 2, 3], output_tokens=[4, 5])
    assert token_counts_of(task) == TokenCounts(decoded=2, prefilled=3)
    note(task, counts=TokenCounts(2, 1, 2))
    assert token_counts_of(task) == TokenCounts(2, 1, 2)


def test_the_estimate_needs_output_ids():
    assert token_counts_of(GenerationTask(input_tokens=[1], output_str="text")) is None
    assert token_counts_of(GenerationTask(input_str="text", output_tokens=[])) == TokenCounts()


def test_counts_of_other_tasks_are_recorded_or_unknown():
    for task_type in [ScoreTask, BranchTask, VerifyTask]:
        task = task_type(custom_output_params={"other": 1})
        assert token_counts_of(task) is None
        note(task, counts=TokenCounts(0, 9))
        assert token_counts_of(task) == TokenCounts(0, 9)
        assert task.custom_output_params["other"] == 1
        bare = task_type()
        note(bare, counts=TokenCounts(1))
        assert token_counts_of(bare) == TokenCounts(1)


def test_output_of_refuses_silence_but_not_an_empty_text():
    assert output_of(GenerationTask(output_str="")) == ""
    with pytest.raises(NoOutputError, match="worker draft left no output in a GenerationTask"):
        output_of(GenerationTask(worker_tag=WorkerTag.DRAFT))


@pytest.mark.parametrize(
    ("reported", "num_tokens", "max_tokens", "reason"),
    [
        ("stop_words", 5, 5, "stop_words"),
        (None, 5, 5, "length"),
        (None, 4, 5, "stop"),
        (None, None, 5, None),
        (None, 5, None, None),
    ],
)
@pytest.mark.parametrize("has_field", [True, False])
def test_why_a_generation_ended_is_known_by_its_tokens_where_the_worker_is_silent(
    reported, num_tokens, max_tokens, reason, has_field
):
    task = GenerationTask(max_tokens=max_tokens, output_tokens=None if num_tokens is None else [0] * num_tokens)
    if has_field:
        task.finish_reason = reported
    elif reported is None:
        task = types.SimpleNamespace(max_tokens=task.max_tokens, output_tokens=task.output_tokens)
    else:
        pytest.skip("a task without the field reports nothing")
    assert finish_reason_of(task) == reason


def test_a_stream_that_goes_on_has_not_ended():
    task = StreamGenerationTask(max_tokens=9, output_tokens=[1])
    assert finish_reason_of(task) is None
    task.end_flag = True
    assert finish_reason_of(task) == "stop"


def test_usage_of_upstreams_worker_is_read_where_it_gives_no_ids():
    task = GenerationTask(output_str="abc", max_tokens=3)
    task.usage_prompt_tokens, task.usage_completion_tokens = 7, 3
    assert token_counts_of(task) == TokenCounts(3, 7)
    assert finish_reason_of(task) == "length"
    task.usage_completion_tokens = 2
    assert finish_reason_of(task) == "stop"
    note(task, counts=TokenCounts(1, 2, 3))
    assert token_counts_of(task) == TokenCounts(1, 2, 3)
