"""Memory that follows the tokens: what fits at once, what branches share, and what happens where no block is left."""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.meta import token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.workers.huggingface import worker as module
from scaffolding_ext.workers.huggingface.attention import ATTENTION
from scaffolding_ext.workers.huggingface.block_pool import BlockPool
from scaffolding_ext.workers.huggingface.engine_request import GREEDY, Ends, EngineRequest
from scaffolding_ext.workers.huggingface.kv_blocks import kv_limits
from scaffolding_ext.workers.huggingface.model_loading import load_model
from scaffolding_ext.workers.huggingface.model_runner import token_bytes
from scaffolding_ext.workers.huggingface.request_scheduler import RequestScheduler
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from tests.workers.huggingface.tolerance import float32_tolerance

MODEL = "tinylm/draft"
BLOCK_BYTES = 32 * 2 * 3 * 3 * 32 * 4  # tokens x (keys, values) x layers x heads x head size x float32
TOLERANCE = float32_tolerance(longest_sum=1024, num_sums=24, magnitude=32.0)  # of log-probabilities
WAIT = 60  # seconds until a test gives up

# Keys and values as large as those of Qwen2.5-0.5B and 7B; nothing is computed with them.
SMALL = {"num_hidden_layers": 24, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 128}
LARGE = {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584}


def shaped(context_len, **sizes):
    """A network of which there are only the shapes."""
    config = Qwen2Config(vocab_size=512, intermediate_size=64, max_position_embeddings=context_len, **sizes)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config).eval()
    network.set_attn_implementation(ATTENTION)
    return network


def run(worker, tasks):
    async def all_of_them():
        return await asyncio.wait_for(asyncio.gather(*map(worker.run_task, tasks), return_exceptions=True), WAIT)

    return asyncio.run(all_of_them())


# ---- what fits


def limits_of(network, context_len, **options):
    given = {"max_batch_size": 64, "max_seq_len": None, "tokens_per_block": 32, "kv_cache_bytes": None}
    return kv_limits(
        token_bytes(network),
        network.device,
        context_len=context_len,
        prefix_cache_bytes=256 * 2**20,
        **{**given, **options},
    )


def test_sixty_four_requests_of_300_tokens_run_at_once_on_the_kv_shape_of_qwen_half_b():
    limits = limits_of(shaped(32_768, **SMALL), 32_768)
    assert limits.max_seq_len == 32_768
    pool = BlockPool(limits.num_blocks, 32, limits.max_cached)
    scheduler = RequestScheduler(pool, max_batch_size=64, prefill_chunk=1 << 30)
    for number in range(64):
        scheduler.add(EngineRequest([number] * 300, Ends(1), GREEDY))
    scheduler.admit()
    assert len(scheduler.running) == 64
    assert len(scheduler.works()) == 64
    assert pool.num_held == 64 * 10
    assert pool.num_free > pool.num_held  # there is room for as many again


def test_chains_are_let_in_by_priority_behind_what_others_wait_for():
    pool = BlockPool(64, 32, 0)
    scheduler = RequestScheduler(pool, max_batch_size=1, prefill_chunk=1 << 30)
    late, soon, awaited = (
        EngineRequest([number] * 9, Ends(4), GREEDY, urgent=urgent)
        for number, urgent in enumerate([False, False, True])
    )
    for request, request.priority in ((late, 9.0), (soon, 1.0), (awaited, 50.0)):
        scheduler.add(request)
    scheduler.admit()
    assert list(scheduler.running) == [awaited, soon]  # one chain has a place
    scheduler.leave(soon, keep=False)
    scheduler.admit()
    assert list(scheduler.running) == [awaited, late]


def test_a_7b_shape_with_a_long_context_loads_by_default(monkeypatch):
    network = shaped(131_072, **LARGE)
    loaded = load_model(MODEL)._replace(network=network)
    monkeypatch.setattr(module, "load_model", lambda *args: loaded)
    with HuggingFaceWorker(MODEL) as worker:
        per_token = 28 * 2 * 4 * 128 * 4
        num_blocks = 4 * 2**30 // (32 * per_token)
        assert worker.max_seq_len == 32 * num_blocks
        (error,) = run(worker, [GenerationTask(input_tokens=[5], max_tokens=131_000, temperature=0.0)])
        assert f"{32 * num_blocks} in all (kv_cache_bytes, {4 * 2**30}, holds no more)" in str(error)


# ---- what is shared


# ---- where no block is left


def mixed_tasks():
    """Chains, scores and verdicts, some of which begin alike."""
    prefix = list(range(5, 60))
    tasks = [
        GenerationTask(
            input_tokens=[*prefix[: 7 * number % 50], 9 + number],
            max_tokens=30 + 6 * number,
            ignore_eos=True,
            temperature=0.8,
            seed=number,
        )
        for number in range(9)
    ]
    tasks += [ScoreTask(input_tokens=prefix[:20], continuation_tokens=prefix[: 30 + number]) for number in range(3)]
    return [*tasks, VerifyTask(branches=[[*prefix, 70 + i] for i in range(4)], yes_token=70, no_token=71)]


@pytest.mark.parametrize("options", [{}, {"enable_block_reuse": False}, {"prefix_cache_bytes": 0, "prefill_chunk": 16}])
def test_every_result_is_the_same_where_requests_are_preempted(options):
    few, many = mixed_tasks(), mixed_tasks()
    room = 6 * BLOCK_BYTES
    with HuggingFaceWorker(MODEL, max_seq_len=128, kv_cache_bytes=room, **options) as worker:
        assert run(worker, few) == [TaskStatus.SUCCESS] * len(few)
        metrics = worker.metrics
        assert metrics.num_preempted > 0
        assert metrics.num_held_blocks + metrics.num_running + metrics.num_waiting + metrics.num_paused == 0
        computed = [token_counts_of(task) for task in few]
        assert (
            sum(counts.decoded + counts.prefilled for counts in computed) > metrics.num_decoded + metrics.num_prefilled
        )  # a text's last token
        assert sum(counts.prefilled for counts in computed) == metrics.num_prefilled  # the ledger has what was repeated
    with HuggingFaceWorker(MODEL, max_seq_len=128, **options) as worker:
        assert run(worker, many) == [TaskStatus.SUCCESS] * len(many)
        assert worker.metrics.num_preempted == 0
    assert [task.output_tokens for task in few[:9]] == [task.output_tokens for task in many[:9]]
    for some, others in zip(few[9:12], many[9:12], strict=True):
        assert some.logprobs == pytest.approx(others.logprobs, abs=TOLERANCE)
    assert few[12].scores == pytest.approx(many[12].scores, abs=TOLERANCE)


def test_the_oldest_request_is_never_preempted():
    with HuggingFaceWorker(MODEL, max_seq_len=96, kv_cache_bytes=4 * BLOCK_BYTES) as worker:
        ended = []

        async def serve(number):
            task = GenerationTask(input_tokens=[5, 6 + number], max_tokens=90, ignore_eos=True, temperature=0.0)
            await worker.run_task(task)
            ended.append(number)
            return token_counts_of(task).prefilled

        async def serve_all():
            return await asyncio.wait_for(asyncio.gather(*map(serve, range(3))), WAIT)

        prefilled = asyncio.run(serve_all())
        assert ended[0] == 0
        assert prefilled[0] == 2
        assert sum(prefilled[1:]) > 2 * 2
