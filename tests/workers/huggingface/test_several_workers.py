"""Several HuggingFaceWorkers in one process: placed by the stack file, each as good as alone; and what they tell."""

import asyncio

import torch

from scaffolding_ext import load_stack
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.workers.huggingface.continuous_batch import EngineMetrics
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

STACK = """
controller: {type: NativeGenerationController, args: {sampling_params: {max_tokens: 8}}}
workers:
  generation: {type: HuggingFaceWorker, args: {model: tinylm/target, threads: 2, device: cpu, max_batch_size: 8}}
  draft: {type: HuggingFaceWorker, args: {model: tinylm/draft, threads: 1, device: cpu, dtype: bfloat16}}
"""


def tasks(num, max_tokens):
    return [
        GenerationTask(input_tokens=[*range(5, 30), i], max_tokens=max_tokens, temperature=0.7, seed=i, ignore_eos=True)
        for i in range(num)
    ]


def run(*pairs):
    """Run each worker's tasks, all at once; returns their token ids."""

    async def all_of_them():
        jobs = [worker.run_task(task) for worker, given in pairs for task in given]
        assert set(await asyncio.wait_for(asyncio.gather(*jobs), 60)) == {TaskStatus.SUCCESS}

    asyncio.run(all_of_them())
    return [[task.output_tokens for task in given] for _, given in pairs]


def test_a_stack_file_places_its_workers(tmp_path):
    path = tmp_path / "stack.yaml"
    path.write_text(STACK)
    with load_stack(str(path)) as llm:
        placed = {str(tag): worker._engine for tag, worker in llm.workers.items()}
        threads = {tag: engine._threads for tag, engine in placed.items()}
        models = {tag: engine._batch._runner._model for tag, engine in placed.items()}
        assert llm.generate("Start with 3.").outputs[0].text
    assert threads == {"generation": 2, "draft": 1}
    assert {tag: model.dtype for tag, model in models.items()} == {"generation": torch.float32, "draft": torch.bfloat16}
    assert {str(model.device) for model in models.values()} == {"cpu"}


def test_two_workers_at_once_write_what_each_writes_alone():
    target, draft = HuggingFaceWorker("tinylm/target"), HuggingFaceWorker("tinylm/draft")
    alone = [run((worker, tasks(6, 60)))[0] for worker in (target, draft)]
    together = run((target, tasks(6, 60)), (draft, tasks(6, 60)))
    assert together == alone
    assert alone[0] != alone[1]
    for worker in (target, draft):
        worker.shutdown()


def test_a_worker_that_is_busy_for_long_does_not_hold_up_another():
    busy, brief = HuggingFaceWorker("tinylm/target"), HuggingFaceWorker("tinylm/draft")

    async def both():
        long = [asyncio.ensure_future(busy.run_task(task)) for task in tasks(16, 1900)]
        await asyncio.wait_for(asyncio.gather(*[brief.run_task(task) for task in tasks(16, 60)]), 60)
        ended = [task.done() for task in long]
        for task in long:
            task.cancel()
        await asyncio.gather(*long, return_exceptions=True)
        return ended

    assert asyncio.run(both()) == [False] * 16
    for worker in (busy, brief):
        worker.shutdown()


def test_metrics_tell_what_was_computed_and_reused():
    worker = HuggingFaceWorker("tinylm/draft", max_batch_size=4, tokens_per_block=16)
    fresh = worker.metrics
    assert fresh == EngineMetrics(0, 0, fresh.num_free_blocks, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    run((worker, tasks(1, 11)))
    first = worker.metrics
    assert (first.num_prefilled, first.num_decoded, first.num_reused) == (26, 10, 0)
    assert first.num_cached_blocks == 36 // 16
    assert first.num_steps == 11  # one reads the prompt and draws the first token, ten compute the others' KV
    run((worker, tasks(3, 11)))
    assert worker.metrics.num_reused == 3 * 16
    assert worker.metrics.num_prefilled == 26 + 3 * 10
    worker.shutdown()


def test_of_equal_new_prefixes_one_is_read_and_the_others_wait():
    worker = HuggingFaceWorker("tinylm/draft", max_batch_size=16, prefill_chunk=64)
    prefix = [5 + i % 400 for i in range(300)]
    given = [
        GenerationTask(input_tokens=[*prefix, 7 + i], max_tokens=4, ignore_eos=True, temperature=0.0) for i in range(12)
    ]
    run((worker, given))
    assert worker.metrics.num_prefilled == 301 + 11 * (301 - 288)
    worker.shutdown()
    worker = HuggingFaceWorker("tinylm/draft", max_batch_size=16, prefill_chunk=64, enable_block_reuse=False)
    without = [
        GenerationTask(input_tokens=task.input_tokens, max_tokens=4, ignore_eos=True, temperature=0.0) for task in given
    ]
    run((worker, without))
    assert (worker.metrics.num_prefilled, worker.metrics.num_reused) == (12 * 301, 0)
    assert worker.metrics.num_cached_blocks == 0
    assert [task.output_tokens for task in without] == [task.output_tokens for task in given]
    worker.shutdown()
