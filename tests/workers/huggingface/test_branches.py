"""HuggingFaceWorker serves BranchTask: one prefix, held once; blocks are evicted by their priority."""

import asyncio
import contextvars

import pytest

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, TaskStatus, current_scope
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.meta import TokenCounts, token_counts_of
from scaffolding_ext.protocol.standins import ExecutionScope
from scaffolding_ext.protocol.tasks import KeepKVTask
from scaffolding_ext.request.program import Program, enter_program, leave_program
from scaffolding_ext.workers.budgeted import BudgetedWorker
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from tests.workers.huggingface.tolerance import float32_tolerance

MODEL = "tinylm/draft"
BLOCK = 32
BLOCK_BYTES = 73_728  # of this model
TOLERANCE = float32_tolerance(longest_sum=1024, num_sums=24, magnitude=32.0)
PREFIX = [5 + 37 * place % 400 for place in range(100)]
SUFFIXES = [[], [7], [8, 9, 10], [11] * 20]


def run(worker, *tasks):
    async def all_of_them():
        return await asyncio.gather(*(worker.run_task(task) for task in tasks))

    assert set(asyncio.run(all_of_them())) == {TaskStatus.SUCCESS}


def branches(**fields):
    given = {"prefix_tokens": PREFIX, "suffixes": SUFFIXES, "max_tokens": 12, "temperature": 0.8}
    return BranchTask(**given | {"seeds": list(range(len(fields.get("suffixes", SUFFIXES))))} | fields)


@pytest.fixture(scope="module")
def worker():
    with HuggingFaceWorker(MODEL, max_seq_len=512) as worker:
        yield worker


def test_branches_are_what_requests_of_their_own_would_write(worker):
    task = branches()
    alone = [
        GenerationTask(input_tokens=PREFIX + suffix, max_tokens=12, temperature=0.8, seed=seed, num_logprobs=1)
        for seed, suffix in enumerate(SUFFIXES)
    ]
    run(worker, task)
    with HuggingFaceWorker(MODEL, max_seq_len=512, enable_block_reuse=False) as other:
        run(other, *alone)
    assert task.output_tokens == [each.output_tokens for each in alone]
    assert task.outputs == [each.output_str for each in alone]
    assert task.finish_reasons == [each.finish_reason for each in alone]
    for logprobs, confidence, each in zip(task.logprobs, task.confidences, alone, strict=True):
        steps = list(zip(each.output_tokens, each.logprobs, strict=True))
        assert logprobs == pytest.approx([step[token].logprob for token, step in steps], abs=TOLERANCE)
        assert 0 < confidence <= 1
    assert len({tuple(ids) for ids in task.output_tokens}) == len(SUFFIXES)


def test_the_prefix_is_read_once_and_held_once():
    with HuggingFaceWorker(MODEL, max_seq_len=512, max_batch_size=16) as worker:
        task = branches(suffixes=[[20 + number] for number in range(16)], max_tokens=20)
        run(worker, task)
        counts = token_counts_of(task)
        pool = worker._engine._batch.pool
        num_tails = 16 * -(-(len(PREFIX) % BLOCK + 1 + 20) // BLOCK)
        assert counts == TokenCounts(decoded=320, prefilled=101 + 15 * 5, reused=15 * 96)
        assert pool.num_cached <= len(PREFIX) // BLOCK + num_tails


def test_whole_blocks_are_shared_and_the_rest_of_the_prefix_is_read_again():
    """The prefix ends 4 tokens into a block, so each branch reads these anew; so does a request that goes on there."""
    program = Program()
    enter_program(program)
    with HuggingFaceWorker(MODEL, max_seq_len=512) as other:
        run(other, branches(seeds=[9, 10, 11, 12]))
        task = branches()
        run(other, task)
        goes_on = GenerationTask(input_tokens=[*PREFIX, *SUFFIXES[3], *task.output_tokens[3]], max_tokens=1)
        run(other, goes_on)
    leave_program()
    whole = len(PREFIX) // BLOCK * BLOCK
    kv = [event["reused"] for event in program.trace if event["event"] == "branch_kv"]
    assert kv == [[0, whole, whole, whole], [whole] * 4]
    assert token_counts_of(goes_on).reused == (len(goes_on.input_tokens) - 1) // BLOCK * BLOCK > whole


def test_branches_of_different_lengths_end_by_themselves(worker):
    long = branches(suffixes=[[6], [7]], max_tokens=100, temperature=0.0, seeds=None)
    run(worker, long)
    ends = [len(ids) for ids in long.output_tokens]
    assert [reason == "length" for reason in long.finish_reasons] == [end == 100 for end in ends]


def test_a_verdict_on_a_branch_reads_the_question_alone(worker):
    task = branches(seeds=[9, 10, 11, 12])
    run(worker, task)
    whole = [PREFIX + s + ids for s, ids in zip(SUFFIXES, task.output_tokens, strict=True)]
    verify = VerifyTask(branches=[[*ids, 70, 71] for ids in whole], yes_token=80, no_token=81)
    run(worker, verify)
    ends = [(len(ids) - 1) // BLOCK * BLOCK for ids in whole]  # a branch's last token was never computed
    assert token_counts_of(verify).prefilled == sum(len(ids) + 2 - end for ids, end in zip(whole, ends, strict=True))


@pytest.mark.parametrize("num_tokens", [29, 20])  # a branch's KV fills its last block, or does not
def test_a_verdict_leaves_the_kv_that_it_found(num_tokens):
    with HuggingFaceWorker(MODEL, max_seq_len=512) as worker:
        task = branches(suffixes=[[], [7]], max_tokens=num_tokens, temperature=0.0)
        run(worker, task)
        assert {len(ids) for ids in task.output_tokens} == {num_tokens}
        whole = [PREFIX + suffix + ids for suffix, ids in zip([[], [7]], task.output_tokens, strict=True)]
        first, second = (VerifyTask(branches=[[*ids, 70] for ids in whole], yes_token=80, no_token=81) for _ in "ab")
        cached = worker.metrics.num_cached_blocks
        run(worker, first)
        run(worker, second)
        assert worker.metrics.num_cached_blocks == cached
    assert token_counts_of(first) == token_counts_of(second)


@pytest.mark.parametrize("scores", [[0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4], None])
def test_blocks_leave_in_the_order_of_their_scores_and_branches_that_come_back_are_computed_anew(scores):
    """Eight branches in a cache for the prefix and four of them."""
    prefix = PREFIX[:64]
    cached = 2 + 4
    with HuggingFaceWorker(
        MODEL, max_seq_len=128, prefix_cache_bytes=cached * BLOCK_BYTES, eviction_policy="branch_score"
    ) as worker:
        task = branches(
            prefix_tokens=prefix, suffixes=[[9 + number] for number in range(8)], max_tokens=32, branch_scores=scores
        )
        run(worker, task)
        metrics = worker.metrics
        assert metrics.num_cached_blocks == cached
        assert metrics.num_evicted == 4
        assert metrics.num_free_blocks == worker._engine._batch.pool.num_blocks - cached
        kept = []
        for number, ids in enumerate(task.output_tokens):  # of the lowest priority, so that nothing is evicted for them
            back = branches(prefix_tokens=prefix, suffixes=[[9 + number, *ids]], max_tokens=1, branch_scores=[0.0])
            run(worker, back)
            if token_counts_of(back).reused > len(prefix):
                kept.append(number)
    if scores is not None:
        assert kept == [0, 2, 4, 6]  # those of the highest scores; none of them was found by chance
    with HuggingFaceWorker(MODEL, max_seq_len=128) as roomy:
        again = branches(prefix_tokens=prefix, suffixes=[[9 + number] for number in range(8)], max_tokens=32)
        run(roomy, again)
    assert task.output_tokens == again.output_tokens


def test_branches_leave_the_cache_to_who_comes_after_them():
    """By default the least recently used blocks are evicted, whatever a branch has scored."""
    prompt = [3 + 29 * place % 400 for place in range(65)]
    with HuggingFaceWorker(MODEL, max_seq_len=256, prefix_cache_bytes=8 * BLOCK_BYTES) as worker:
        run(worker, branches(prefix_tokens=PREFIX[:64], suffixes=[[9 + n] for n in range(8)], max_tokens=30))
        prefilled = []
        for _ in range(3):
            plain = GenerationTask(input_tokens=prompt, max_tokens=2, temperature=0.0)
            run(worker, plain)
            prefilled.append(token_counts_of(plain).prefilled)
    assert prefilled == [65, 1, 1]


def written(worker):
    """Two branches of one block each, whole, and the task that goes on with each of them."""
    task = branches(prefix_tokens=PREFIX[:64], suffixes=[[9], [11]], max_tokens=32, temperature=0.0)
    run(worker, task)
    whole = [[*PREFIX[:64], suffix[0], *ids] for suffix, ids in zip(task.suffixes, task.output_tokens, strict=True)]
    return whole, [BranchTask(prefix_tokens=ids, suffixes=[[]], max_tokens=1, temperature=0.0) for ids in whole]


def in_scope(name, work):
    def scoped():
        current_scope.set(ExecutionScope(name))
        return work()

    return contextvars.copy_context().run(scoped)


@pytest.mark.parametrize("wrap", [lambda worker: worker, BudgetedWorker])
def test_a_request_frees_the_kv_that_it_cannot_use_any_more(wrap):
    with HuggingFaceWorker(MODEL, max_seq_len=256) as engine:
        worker = wrap(engine)

        def search():
            (kept, _), tasks = written(worker)
            cached = engine.metrics.num_cached_blocks
            run(worker, KeepKVTask(sequences=[kept]))
            run(worker, *tasks)
            return cached, [token_counts_of(task).reused for task in tasks]

        cached, reused = in_scope("one", search)
        assert cached == 2 + 2
        assert reused == [96, 64]  # of the other branch nothing is left but the prefix


def test_kv_that_another_request_has_used_is_never_freed_for_it():
    with HuggingFaceWorker(MODEL, max_seq_len=256) as worker:
        _, tasks = in_scope("one", lambda: written(worker))
        in_scope("two", lambda: run(worker, *tasks))
        in_scope("one", lambda: run(worker, KeepKVTask(sequences=[])))
        _, tasks = in_scope("three", lambda: written(worker))
        run(worker, *tasks)
    assert [token_counts_of(task).reused for task in tasks] == [96, 96]


def test_kept_kv_ages_like_all_kv():
    """A request that keeps much must not crowd out what it, or another request, needs next."""
    prompts = [[3 + n + 29 * place % 300 for place in range(65)] for n in range(4)]
    with HuggingFaceWorker(MODEL, max_seq_len=256, prefix_cache_bytes=6 * BLOCK_BYTES) as worker:

        def search():
            whole, tasks = written(worker)
            run(worker, KeepKVTask(sequences=whole))
            return tasks

        tasks = in_scope("one", search)
        for prompt in prompts:
            run(worker, GenerationTask(input_tokens=prompt, max_tokens=2, temperature=0.0))
        in_scope("one", lambda: run(worker, *tasks))
        reused = [token_counts_of(task).reused for task in tasks]
        assert reused == [0, 64]  # the second finds the prefix that the first computes


def test_live_blocks_of_other_requests_are_never_given_away():
    room = 14 * BLOCK_BYTES
    with HuggingFaceWorker(MODEL, max_seq_len=256, kv_cache_bytes=room) as worker:
        tasks = [branches(prefix_tokens=[5 + n] * 70, max_tokens=40, branch_scores=[n / 4] * 4) for n in range(4)]
        run(worker, *tasks)
        assert worker.metrics.num_preempted + worker.metrics.num_evicted > 0
        assert worker.metrics.num_held_blocks == 0
    with HuggingFaceWorker(MODEL, max_seq_len=256) as roomy:
        others = [branches(prefix_tokens=[5 + n] * 70, max_tokens=40) for n in range(4)]
        run(roomy, *others)
    assert [task.output_tokens for task in tasks] == [task.output_tokens for task in others]


def test_sixty_four_branches_on_a_long_prefix_hold_little_more_than_their_tokens():
    prefix, num_tokens = [5 + 13 * place % 400 for place in range(1024)], 72  # a branch takes 3 blocks
    with HuggingFaceWorker(MODEL, max_seq_len=1536, max_batch_size=64) as worker:
        pool, most = worker._engine._batch.pool, 0
        grow = pool.grow

        def noting(sequence):
            nonlocal most
            grow(sequence)
            most = max(most, pool.num_held)

        pool.grow = noting
        task = branches(prefix_tokens=prefix, suffixes=[[20 + n] for n in range(64)], max_tokens=num_tokens)
        run(worker, task)
    num_held = len(prefix) + sum(1 + len(ids) for ids in task.output_tokens)
    assert most * BLOCK <= 1.3 * num_held


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"suffixes": [], "seeds": None}, "suffixes is empty"),
        ({"seeds": [1, 2]}, "seeds has 2 numbers, but there are 4 branches"),
        ({"branch_scores": [0.5]}, r"branch_scores is \[0.5\]; give a score in \[0, 1\] for each of the 4 branches"),
        ({"depth": 0}, "depth is 0"),
        ({"prefix_tokens": [], "suffixes": [[], [5]], "seeds": None}, "give a prompt of at least one token"),
        ({"prefix_tokens": [9999]}, "contains 9999"),
    ],
)
def test_what_is_unusable_is_refused_by_name(worker, fields, message):
    with pytest.raises(InvalidTaskError, match=message):
        asyncio.run(worker.run_task(branches(**fields)))
    run(worker, branches(max_tokens=1))


def test_a_controller_sends_one_task_and_the_trace_says_what_was_reused(worker):
    from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController

    controller = KVShareBranchingController(4, max_tokens=24)
    with ScaffoldingLlm(controller, {"generation": worker}, seed=0) as llm:
        trace = llm.generate(
            "Start with 5. Apply " + ",".join(f"{label}+3" for label in "abcdefgh") + ". Find the total."
        ).program.trace
    assert not [event for event in trace if event["event"] == "fallback"]
    (kv,) = [event for event in trace if event["event"] == "branch_kv"]
    assert len(kv["reused"]) == 4
    assert sum(reused > 0 for reused in kv["reused"]) == 3
