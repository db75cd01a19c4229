"""HuggingFaceWorker on the embedded draft model: exact against transformers, and honest about what it computes."""

import asyncio
import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from scaffolding_ext.errors import EngineError
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import PROBE, note, token_counts_of
from scaffolding_ext.protocol.tasks import CompareTask
from scaffolding_ext.tinylm.grammar import sample_problem
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from tests.workers.huggingface.tolerance import float32_tolerance

MODEL = "tinylm/draft"
TOLERANCE = float32_tolerance(longest_sum=1024, num_sums=24, magnitude=32.0)  # of log-probabilities


@pytest.fixture(scope="module")
def reference():
    return AutoModelForCausalLM.from_pretrained(model_folder(MODEL)).eval()


@pytest.fixture
def worker():
    worker = HuggingFaceWorker(MODEL, max_batch_size=16, prefill_chunk=32, seed=0)
    yield worker
    worker.shutdown()


def prompts(num_prompts):
    prompting = Prompting.for_model(MODEL)
    tasks = [
        GenerationTask(input_str=sample_problem(random.Random(i)).question, temperature=0.0) for i in range(num_prompts)
    ]
    for task in tasks:
        prompting.apply(task)
    return [task.input_tokens for task in tasks]


def run(worker, tasks):
    async def all_of_them():
        return await asyncio.gather(*(worker.run_task(task) for task in tasks))

    return asyncio.run(all_of_them())


def reference_logits(reference, ids):
    with torch.inference_mode():
        return reference(torch.tensor([ids])).logits[0]


def assert_greedy(reference, prompt, output):
    """Every token is the likeliest one, or within a near tie of it."""
    logits = reference_logits(reference, prompt + output)[len(prompt) - 1 : -1]
    chosen = logits.gather(-1, torch.tensor(output)[:, None])[:, 0]
    assert (logits.max(-1).values - chosen).max() <= TOLERANCE


def test_seeds_matter_and_repeat(worker):
    prompt = prompts(1)[0]
    tasks = [GenerationTask(input_tokens=prompt, max_tokens=60, temperature=1.0, seed=s) for s in (1, 1, 2)]
    run(worker, tasks)
    assert tasks[0].output_tokens == tasks[1].output_tokens != tasks[2].output_tokens


def test_prefix_reuse_computes_only_what_is_new(worker, reference):
    prompt = prompts(1)[0]
    first = GenerationTask(input_tokens=prompt, max_tokens=50, temperature=0.0)
    run(worker, [first])
    longer = prompt + first.output_tokens[:49]
    second = GenerationTask(input_tokens=longer, max_tokens=10, temperature=0.0)
    run(worker, [second])
    counts = token_counts_of(second)
    assert counts.reused == (len(longer) - 1) // 32 * 32 > len(prompt)
    assert counts.prefilled == len(longer) - counts.reused
    assert_greedy(reference, longer, second.output_tokens)


def test_a_probe_reuses_a_running_chain(worker, reference):
    prompt = prompts(1)[0]
    suffix = Prompting.for_model(MODEL).encode("\nFinal Answer: \\boxed{")

    async def chain_and_probe():
        chain = StreamGenerationTask(input_tokens=prompt, max_tokens=200, temperature=0.7, seed=3, streaming_step=30)
        await worker.run_task(chain)
        prefix = prompt + chain.output_tokens
        probe = GenerationTask(input_tokens=prefix + suffix, max_tokens=5, temperature=0.0)
        note(probe, purpose=PROBE)
        await worker.run_task(probe)
        chain.cancel_flag = True
        await worker.run_task(chain)
        return prefix, probe, chain

    prefix, probe, chain = asyncio.run(chain_and_probe())
    assert token_counts_of(probe).reused == (len(prefix) - 1) // 32 * 32 > 0
    assert token_counts_of(probe).prefilled <= len(suffix) + 32
    assert_greedy(reference, prefix + suffix, probe.output_tokens)
    assert chain.end_flag
    assert worker.metrics.num_running == 0


def test_cancelling_frees_the_row(worker):
    async def cancel():
        waiting = asyncio.ensure_future(
            worker.run_task(
                GenerationTask(input_tokens=prompts(1)[0], max_tokens=1900, ignore_eos=True, temperature=0.0)
            )
        )
        stream = StreamGenerationTask(input_tokens=prompts(2)[1], max_tokens=1900, ignore_eos=True, temperature=0.0)
        await worker.run_task(stream)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await worker.on_scope_end("")  # a scope that ends takes its open streams with it
        last = GenerationTask(input_tokens=prompts(3)[2], max_tokens=1, temperature=0.0)
        await worker.run_task(last)

    asyncio.run(cancel())
    assert worker.metrics.num_running == 0


def test_the_prefix_store_stays_under_its_cap(reference):
    worker = HuggingFaceWorker(MODEL, prefix_cache_bytes=200_000)
    run(worker, [GenerationTask(input_tokens=ids, max_tokens=40, temperature=0.0) for ids in prompts(20)])
    metrics = worker.metrics
    worker.shutdown()
    assert metrics.num_evicted > 0
    assert (
        0 < metrics.num_cached_blocks * 32 * 3 * 2 * 64 * 4 <= 200_000
    )  # layers x (keys, values) x hidden size x float32


def test_shutdown_wakes_and_refuses(worker):
    async def shut():
        waiting = asyncio.ensure_future(
            worker.run_task(GenerationTask(input_tokens=[5, 6], max_tokens=1900, ignore_eos=True, temperature=0.0))
        )
        stream = StreamGenerationTask(input_tokens=[5, 7], max_tokens=1900, ignore_eos=True, temperature=0.0)
        await worker.run_task(stream)
        await asyncio.get_running_loop().run_in_executor(None, worker.shutdown)
        with pytest.raises(EngineError, match="shut down"):
            await waiting

    asyncio.run(shut())
    with pytest.raises(EngineError, match="make a new worker"):
        run(worker, [GenerationTask(input_tokens=[5], max_tokens=1, temperature=0.0)])


def test_unserved_tasks_are_declined(worker):
    assert run(worker, [CompareTask()]) == [TaskStatus.WORKER_NOT_SUPPORTED]
