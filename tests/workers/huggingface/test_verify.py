"""HuggingFaceWorker serves VerifyTask: P(yes) of each branch, read from the last token's logits."""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM

from scaffolding_ext.errors import EngineError, InvalidTaskError
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.lowering import lower_verify, write_back_verify
from scaffolding_ext.protocol.meta import TokenCounts, token_counts_of
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from tests.workers.huggingface.tolerance import float32_tolerance

MODEL = "tinylm/draft"
TOLERANCE = float32_tolerance(longest_sum=1024, num_sums=24, magnitude=32.0)  # of log-probabilities, and so of scores
BRANCHES = [list(range(5, 45)), list(range(5, 40)), [9], list(range(60, 200))]
YES, NO = 70, 71


@pytest.fixture(scope="module")
def worker():
    worker = HuggingFaceWorker(MODEL, max_batch_size=4, max_seq_len=256, prefill_chunk=32, seed=0)
    yield worker
    worker.shutdown()


@pytest.fixture(scope="module")
def reference():
    return AutoModelForCausalLM.from_pretrained(model_folder(MODEL)).eval()


def run(worker, *tasks):
    async def all_of_them():
        return await asyncio.gather(*(worker.run_task(task) for task in tasks), return_exceptions=True)

    return asyncio.run(all_of_them())


def test_scores_are_the_softmax_of_the_two_logits(worker, reference):
    task = VerifyTask(branches=BRANCHES, yes_token=YES, no_token=NO)
    assert run(worker, task) == [TaskStatus.SUCCESS]
    for branch, score in zip(BRANCHES, task.scores, strict=True):
        with torch.inference_mode():
            logits = reference(torch.tensor([branch])).logits[0, -1, [YES, NO]]
        assert score == pytest.approx(torch.softmax(logits, -1)[0].item(), abs=TOLERANCE)
    assert len(set(task.scores)) == len(BRANCHES)


def test_the_two_probabilities_add_up_and_agree_with_plain_generation(worker):
    task = VerifyTask(branches=BRANCHES, yes_token=YES, no_token=NO)
    turned = VerifyTask(branches=BRANCHES, yes_token=NO, no_token=YES)
    lowered = lower_verify(task)
    for generation in lowered:
        generation.num_logprobs = 512  # all of them, so that both verdicts are reported
    assert set(run(worker, task, turned, *lowered)) == {TaskStatus.SUCCESS}
    assert [a + b for a, b in zip(task.scores, turned.scores, strict=True)] == pytest.approx([1.0] * 4)
    native = task.scores
    write_back_verify(task, lowered)
    assert task.scores == pytest.approx(native, abs=TOLERANCE)


def test_a_branch_that_was_generated_costs_only_its_question(worker):
    branch = GenerationTask(input_tokens=list(range(300, 350)), max_tokens=30, ignore_eos=True)
    assert run(worker, branch) == [TaskStatus.SUCCESS]
    whole = branch.input_tokens + branch.output_tokens
    task = VerifyTask(branches=[[*whole, 7, 8, 9]], yes_token=YES, no_token=NO)
    stored = worker.metrics.num_cached_blocks
    assert run(worker, task) == [TaskStatus.SUCCESS]
    assert token_counts_of(task) == TokenCounts(decoded=0, prefilled=83 - 64, reused=64)
    assert worker.metrics.num_cached_blocks == stored  # nothing continues a verdict


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"branches": []}, "branches is empty: give at least one branch"),
        ({"branches": [[5], []]}, r"branches\[1\] is empty"),
        ({"branches": [[5], [512]]}, r"branches\[1\] contains 512"),
        ({"branches": [[5] * 257]}, r"branches\[0\] has 257 tokens, but a request may have 256 in all: shorten it"),
        ({"yes_token": 512}, "yes_token and no_token contains 512"),
        ({"no_token": YES}, "yes_token and no_token are both 70: give two different tokens"),
    ],
)
def test_what_is_unusable_is_refused_by_name(worker, fields, message):
    task = VerifyTask(**{"branches": [[5]], "yes_token": YES, "no_token": NO, **fields})
    before = worker.metrics.num_prefilled
    with pytest.raises(InvalidTaskError, match=message):
        asyncio.run(worker.run_task(task))
    assert worker.metrics.num_prefilled == before
    assert task.scores is None


def test_a_failed_branch_fails_the_task_and_frees_the_others(worker, monkeypatch):
    runner = worker._engine._batch._runner
    forward = runner.forward

    def limited(works):
        if any(work.request.prompt_len == 1 for work in works):
            raise torch.OutOfMemoryError("no room")
        return forward(works)

    monkeypatch.setattr(runner, "forward", limited)
    task = VerifyTask(branches=BRANCHES, yes_token=YES, no_token=NO)
    (error,) = run(worker, task)
    assert isinstance(error, EngineError)
    assert task.scores is None
    monkeypatch.undo()
    after = VerifyTask(branches=BRANCHES, yes_token=YES, no_token=NO)
    assert run(worker, after) == [TaskStatus.SUCCESS]
    assert (worker.metrics.num_running, worker.metrics.num_waiting) == (0, 0)
