"""Branches that do not come to their end: cancelled, failed, or shut down; all of them end, and none holds a block."""

import asyncio

import pytest

from scaffolding_ext.errors import EngineError, InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.protocol.meta import token_counts_of
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

PREFIX = [5 + 37 * place % 400 for place in range(100)]
NUM_BRANCHES, NUM_TOKENS = 6, 300
WAIT = 60  # seconds until a test gives up


@pytest.fixture
def worker():
    with HuggingFaceWorker("tinylm/draft", max_seq_len=512, prefill_chunk=64) as worker:
        yield worker


def branches(**fields):
    given = {"prefix_tokens": PREFIX, "suffixes": [[20 + n] for n in range(NUM_BRANCHES)], "temperature": 0.0}
    return BranchTask(**given | {"max_tokens": NUM_TOKENS} | fields)


def submitted(worker, monkeypatch):
    """The requests that the engine gets from here on."""
    requests, submit = [], worker._engine.submit
    monkeypatch.setattr(worker._engine, "submit", lambda request: (requests.append(request), submit(request))[1])
    return requests


def before_pass(worker, monkeypatch, call):
    """Call this on the engine's thread before each pass, with the pass's number and what it computes."""
    runner = worker._engine._batch._runner
    forward, passes = runner.forward, []

    def counting(works):
        passes.append(None)
        call(len(passes), works)
        return forward(works)

    monkeypatch.setattr(runner, "forward", counting)


async def cut_off(worker, monkeypatch, num_passes, how, task):
    """Run a task that meets this in the middle, and return how it ended."""
    loop, reached = asyncio.get_running_loop(), asyncio.Event()

    def call(number, _):
        if number == num_passes:
            loop.call_soon_threadsafe(reached.set)

    before_pass(worker, monkeypatch, call)
    served = asyncio.ensure_future(worker.run_task(task))
    await asyncio.wait_for(reached.wait(), WAIT)
    how(served)
    (result,) = await asyncio.wait_for(asyncio.gather(served, return_exceptions=True), WAIT)
    return result


def check_nothing_is_left(worker, requests):
    """Another task is served as ever; by then, what was cancelled before has ended."""
    task = GenerationTask(input_tokens=[7, 8, 9], max_tokens=2)
    assert asyncio.run(worker.run_task(task)) is TaskStatus.SUCCESS
    assert all(request.ended for request in requests)
    metrics, engine = worker.metrics, worker._engine
    assert metrics.num_running == metrics.num_waiting == metrics.num_paused == metrics.num_held_blocks == 0
    assert not engine._unfinished


@pytest.mark.parametrize("num_passes", [1, 2, 12])  # while the prefix is read, while others wait for it, in mid decode
def test_cancelling_a_branch_task_ends_its_requests_and_frees_their_blocks(worker, monkeypatch, num_passes):
    requests, task = submitted(worker, monkeypatch), branches()
    error = asyncio.run(cut_off(worker, monkeypatch, num_passes, lambda served: served.cancel(), task))
    assert isinstance(error, asyncio.CancelledError)
    assert len(requests) == NUM_BRANCHES
    check_nothing_is_left(worker, requests)
    assert {request.finish_reason for request in requests[:NUM_BRANCHES]} == {"cancelled"}
    assert task.outputs is None
    prefilled = token_counts_of(
        task
    ).prefilled  # what it had cost is told: 64 tokens a pass, as far as passes had ended
    assert min(64 * (num_passes - 1), len(PREFIX)) <= prefilled <= len(PREFIX) + NUM_BRANCHES * 32


def test_a_branch_that_fails_ends_the_others(worker, monkeypatch):
    requests = submitted(worker, monkeypatch)

    def failing(number, works):
        if number >= 12 and any(work.request is requests[2] for work in works):
            raise RuntimeError("out of order")

    before_pass(worker, monkeypatch, failing)
    with pytest.raises(EngineError, match="out of order"):
        asyncio.run(asyncio.wait_for(worker.run_task(branches()), WAIT))
    check_nothing_is_left(worker, requests)
    reasons = {request.finish_reason for request in requests[:NUM_BRANCHES]}
    assert "error" in reasons  # of all that were in the failed pass
    assert reasons <= {"error", "cancelled"}


def test_a_branch_that_is_unusable_ends_the_others(worker, monkeypatch):
    requests = submitted(worker, monkeypatch)
    with pytest.raises(InvalidTaskError, match="contains 9999"):
        asyncio.run(asyncio.wait_for(worker.run_task(branches(suffixes=[[20], [21], [9999]])), WAIT))
    check_nothing_is_left(worker, requests)
    assert all(request.num_decoded < NUM_TOKENS for request in requests)


def test_a_shutdown_fails_a_branch_task_in_flight(worker, monkeypatch):
    requests = submitted(worker, monkeypatch)
    error = asyncio.run(cut_off(worker, monkeypatch, 12, lambda _: worker.shutdown(), branches()))
    assert isinstance(error, EngineError)
    assert str(error) == "the worker was shut down before the task ended: send the task to another worker"
    assert {request.finish_reason for request in requests} == {"error"}
    assert not worker._engine._unfinished


def test_blocks_of_cancelled_branches_serve_those_that_come_after(worker, monkeypatch):
    """The same branches again are what they would have been, on the KV that the cancelled ones have left."""
    asyncio.run(cut_off(worker, monkeypatch, 12, lambda served: served.cancel(), branches()))
    again, alone = branches(max_tokens=20), branches(max_tokens=20)
    asyncio.run(worker.run_task(again))
    assert token_counts_of(again).reused >= NUM_BRANCHES * (len(PREFIX) // 32 * 32)
    with HuggingFaceWorker("tinylm/draft", max_seq_len=512) as other:
        asyncio.run(other.run_task(alone))
    assert again.output_tokens == alone.output_tokens
