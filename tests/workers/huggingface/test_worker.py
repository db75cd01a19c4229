"""HuggingFaceWorker on the embedded draft model: exact against transformers, and honest about what it computes."""

import asyncio
import random

import pytest
import torch
from transformers import AutoModelForCausalLM

from scaffolding_ext.errors import ConfigError, EngineError, InvalidTaskError
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import PROBE, note, token_counts_of
from scaffolding_ext.protocol.tasks import CompareTask, ScoreTask
from scaffolding_ext.testing import float32_tolerance
from scaffolding_ext.tinylm.grammar import sample_problem
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

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


def test_greedy_equals_the_reference_in_a_ragged_batch(worker, reference):
    tasks = [GenerationTask(input_tokens=ids, max_tokens=40 + i, temperature=0.0) for i, ids in enumerate(prompts(24))]
    assert run(worker, tasks) == [TaskStatus.SUCCESS] * 24
    for task in tasks:
        assert_greedy(reference, task.input_tokens, task.output_tokens)
        assert task.finish_reason in ("stop", "length")
        assert token_counts_of(task).prefilled == len(task.input_tokens)
        assert token_counts_of(task).decoded == len(task.output_tokens)


def test_logprobs_equal_the_reference(worker, reference):
    task = GenerationTask(input_tokens=prompts(1)[0], max_tokens=20, num_logprobs=3, temperature=0.7, seed=1)
    run(worker, [task])
    expected = torch.log_softmax(reference_logits(reference, task.input_tokens + task.output_tokens), -1)
    for i, (token, entry) in enumerate(zip(task.output_tokens, task.logprobs, strict=True)):
        row = expected[len(task.input_tokens) - 1 + i]
        assert entry[token].logprob == pytest.approx(row[token].item(), abs=TOLERANCE)
        assert {t for t, e in entry.items() if e.rank} == set(row.topk(3).indices.tolist())


def test_a_sampled_text_does_not_depend_on_its_neighbours():
    ids = prompts(16)

    def texts(batch_size):
        worker = HuggingFaceWorker(MODEL, max_batch_size=batch_size)
        tasks = [GenerationTask(input_tokens=p, max_tokens=60, temperature=0.7, seed=i) for i, p in enumerate(ids)]
        run(worker, tasks)
        worker.shutdown()
        return [task.output_str for task in tasks]

    alone, together = texts(1), texts(16)
    assert sum(a == b for a, b in zip(alone, together, strict=True)) >= 15  # rounding may flip one near tie
    assert len(set(alone)) > 8


def test_seeds_matter_and_repeat(worker):
    prompt = prompts(1)[0]
    tasks = [GenerationTask(input_tokens=prompt, max_tokens=60, temperature=1.0, seed=s) for s in (1, 1, 2)]
    run(worker, tasks)
    assert tasks[0].output_tokens == tasks[1].output_tokens != tasks[2].output_tokens


def test_sampling_follows_the_distribution(worker, reference):
    prompt = prompts(1)[0]
    tasks = [GenerationTask(input_tokens=prompt, max_tokens=1, temperature=1.0, seed=s) for s in range(2000)]
    run(worker, tasks)
    probabilities = torch.softmax(reference_logits(reference, prompt)[-1], -1)
    drawn = torch.bincount(torch.tensor([task.output_tokens[0] for task in tasks]), minlength=len(probabilities)) / 2000
    # The total variation distance of 2,000 draws from their own law; 0.05 is far outside its scatter for a peaked law.
    assert 0.5 * (drawn - probabilities).abs().sum() < 0.05


def test_top_k_and_top_p(worker, reference):
    prompt = prompts(1)[0]
    likeliest = set(reference_logits(reference, prompt)[-1].topk(2).indices.tolist())
    tasks = [GenerationTask(input_tokens=prompt, max_tokens=1, temperature=5.0, top_k=2, seed=s) for s in range(100)]
    tasks += [GenerationTask(input_tokens=prompt, max_tokens=1, temperature=1.0, top_p=1e-6, seed=s) for s in range(20)]
    run(worker, tasks)
    assert {task.output_tokens[0] for task in tasks[:100]} == likeliest
    assert len({task.output_tokens[0] for task in tasks[100:]}) == 1


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


def test_streaming_is_cumulative_and_equals_plain_generation(worker):
    prompt = prompts(1)[0]
    plain = GenerationTask(input_tokens=prompt, max_tokens=60, temperature=0.7, seed=5)
    run(worker, [plain])

    async def stream():
        task = StreamGenerationTask(input_tokens=prompt, max_tokens=60, temperature=0.7, seed=5, streaming_step=7)
        lengths = [0]
        while not task.end_flag:
            await worker.run_task(task)
            assert task.end_flag or len(task.output_tokens) >= lengths[-1] + 7
            lengths.append(len(task.output_tokens))
        return task

    task = asyncio.run(stream())
    assert (task.output_tokens, task.output_str) == (plain.output_tokens, plain.output_str)


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


def test_stop_strings_cut_across_token_borders(worker):
    prompt = prompts(1)[0]
    plain = GenerationTask(input_tokens=prompt, max_tokens=60, temperature=0.0)
    run(worker, [plain])
    stop = plain.output_str[20:27]
    stopped = GenerationTask(input_tokens=prompt, max_tokens=60, stop=[stop, "never there"], temperature=0.0)
    run(worker, [stopped])
    assert stopped.output_str == plain.output_str[: plain.output_str.index(stop)]
    assert stopped.finish_reason == "stop"


def test_scores_equal_the_reference(worker, reference):
    ids = prompts(1)[0]
    continuation = Prompting.for_model(MODEL).encode("Let me work through this.\nSo I get 7.\n")
    task = ScoreTask(input_tokens=ids, continuation_tokens=continuation)
    again = ScoreTask(input_tokens=ids, continuation_tokens=continuation)
    run(worker, [task])
    run(worker, [again])
    expected = torch.log_softmax(reference_logits(reference, ids + continuation), -1)[len(ids) - 1 : -1]
    expected = expected.gather(-1, torch.tensor(continuation)[:, None])[:, 0].tolist()
    assert task.logprobs == pytest.approx(expected, abs=TOLERANCE)
    assert again.logprobs == pytest.approx(expected, abs=TOLERANCE)
    assert token_counts_of(again).reused == (len(ids) - 1) // 32 * 32 > 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 2}, "n is 2"),
        ({"custom_input_params": {"guided_decoding": {"regex": "7"}}}, "custom_input_params has guided_decoding"),
        ({"custom_input_params": {"stop_token_ids": [7]}}, "has stop_token_ids, which HuggingFaceWorker cannot"),
        ({"presence_penalty": 0.5}, "presence_penalty is 0.5"),
        ({"logit_bias": {"5": 1.0}}, "logit_bias"),
        ({"max_tokens": 5000}, "max_tokens is 5000"),
        ({"max_tokens": 0}, "at least 1"),
        ({"input_tokens": []}, "input is empty"),
        ({"input_tokens": None}, "both None"),
        ({"input_tokens": [5] * 3000, "max_tokens": None}, "3000 tokens"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
    ],
)
def test_what_cannot_be_honoured_is_refused_on_that_task_alone(worker, fields, message):
    good = GenerationTask(input_tokens=[5, 6, 7], max_tokens=3, temperature=0.0)
    bad = GenerationTask(**({"input_tokens": [5], "max_tokens": 3} | fields))

    async def both():
        return await asyncio.gather(worker.run_task(good), worker.run_task(bad), return_exceptions=True)

    status, error = asyncio.run(both())
    assert status is TaskStatus.SUCCESS
    assert isinstance(error, InvalidTaskError)
    assert message in str(error)


def test_a_failing_step_fails_its_requests_and_the_engine_lives(worker, monkeypatch):
    def exhausted(*args, **kwargs):
        raise MemoryError("no room")

    task = GenerationTask(input_tokens=[5, 6], max_tokens=3, temperature=0.0)
    with monkeypatch.context() as patch:
        patch.setattr(worker._engine._batch._runner, "forward", exhausted)
        with pytest.raises(EngineError, match="MemoryError: no room"):
            run(worker, [task])
    run(worker, [task])
    assert len(task.output_tokens) == 3 or task.finish_reason == "stop"


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


def test_bad_arguments_name_their_key():
    for arguments, key in (
        ({"threads": 0}, "threads"),
        ({"dtype": "int4"}, "dtype"),
        ({"max_seq_len": 9999}, "max_seq_len"),
    ):
        with pytest.raises(ConfigError) as caught:
            HuggingFaceWorker(MODEL, **arguments)
        assert caught.value.key == key


def test_unserved_tasks_are_declined(worker):
    assert run(worker, [CompareTask()]) == [TaskStatus.WORKER_NOT_SUPPORTED]
