"""HuggingFaceWorker at its limits: memory that runs out, attention that it cannot serve, an engine that fails."""

import asyncio
import shutil
from pathlib import Path

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from scaffolding_ext.errors import ConfigError, EngineError
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.workers.huggingface import attention
from scaffolding_ext.workers.huggingface.model_loading import check_attention
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from tests.workers.huggingface.tolerance import float32_tolerance

MODEL = "tinylm/draft"
BLOCK_BYTES = 32 * 2 * 3 * 3 * 32 * 4  # tokens x (keys, values) x layers x heads x head size x float32
WAIT = 60  # seconds until a test gives up


@pytest.fixture
def worker():
    worker = HuggingFaceWorker(MODEL, max_batch_size=4, seed=0)
    yield worker
    worker.shutdown()


def run(worker, tasks):
    """Run tasks that the engine gets all at once."""

    async def all_of_them():
        with worker._engine._wake:
            calls = [asyncio.ensure_future(worker.run_task(task)) for task in tasks]
            await asyncio.sleep(0)
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), WAIT)

    return asyncio.run(all_of_them())


def exhausted(*args, **kwargs):
    raise torch.OutOfMemoryError("no room")


# ---- an engine that fails


def test_a_failure_between_steps_fails_every_request_and_refuses_more(worker, monkeypatch):
    async def fail():
        stream = StreamGenerationTask(input_tokens=[5, 6], max_tokens=1900, ignore_eos=True)
        await worker.run_task(stream)
        plain = [GenerationTask(input_tokens=[5, i], max_tokens=1900, ignore_eos=True) for i in range(8)]
        waiting = [asyncio.ensure_future(worker.run_task(task)) for task in plain]
        await asyncio.sleep(0)
        monkeypatch.setattr(worker._engine._batch, "step", exhausted)
        stream.streaming_step = 1900
        return await asyncio.wait_for(asyncio.gather(worker.run_task(stream), *waiting, return_exceptions=True), WAIT)

    for error in asyncio.run(fail()):
        assert isinstance(error, EngineError)
        assert (
            str(error)
            == "the engine of this worker has failed: make a new worker. The failure: OutOfMemoryError: no room"
        )
        assert isinstance(error.__cause__, torch.OutOfMemoryError)
    (refusal,) = run(worker, [GenerationTask(input_tokens=[5], max_tokens=1)])
    assert isinstance(refusal, EngineError)
    assert "make a new worker. The failure: OutOfMemoryError: no room" in str(refusal)
    assert isinstance(refusal.__cause__, torch.OutOfMemoryError)
    assert (worker.metrics.num_running, worker.metrics.num_waiting) == (0, 0)


@pytest.mark.parametrize("method", ["begin", "free", "grow"])
def test_no_request_is_lost_where_its_blocks_are_given_or_taken(worker, monkeypatch, method):
    ids = list(range(5, 45))
    first = GenerationTask(input_tokens=ids, max_tokens=8, ignore_eos=True)
    assert run(worker, [first]) == [TaskStatus.SUCCESS]
    monkeypatch.setattr(worker._engine._batch.pool, method, exhausted)
    tasks = [GenerationTask(input_tokens=ids, max_tokens=8 + 9 * i, ignore_eos=True) for i in range(3)]
    results = run(worker, tasks)
    assert all(isinstance(result, EngineError) or result is TaskStatus.SUCCESS for result in results)
    assert any(isinstance(result, EngineError) for result in results)


def test_a_pass_that_runs_out_of_memory_fails_its_requests_and_the_engine_goes_on(worker, monkeypatch):
    runner, forward = worker._engine._batch._runner, worker._engine._batch._runner.forward
    num_passes = []

    def limited(works):
        num_passes.append(len(works))
        if any(work.request.prompt_len == 7 for work in works):
            exhausted()
        return forward(works)

    def tasks():
        return [GenerationTask(input_tokens=[5 + i, 6], max_tokens=30, ignore_eos=True, seed=i) for i in range(3)]

    monkeypatch.setattr(runner, "forward", limited)
    outcomes = run(worker, [*tasks(), GenerationTask(input_tokens=list(range(5, 12)), max_tokens=30)])
    assert {str(error) for error in outcomes} == {"OutOfMemoryError: no room"}
    assert all(isinstance(error.__cause__, torch.OutOfMemoryError) for error in outcomes)
    assert max(num_passes) == 4  # they did run together
    assert run(worker, tasks()) == [TaskStatus.SUCCESS] * 3
    assert (worker.metrics.num_running, worker.metrics.num_waiting) == (0, 0)


# ---- attention


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    """A tiny random Mistral with a window of 32 tokens."""
    folder = tmp_path_factory.mktemp("mistral")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = MistralConfig(
        vocab_size=512, num_key_value_heads=1, head_dim=16, max_position_embeddings=128, sliding_window=32, **sizes
    )
    MistralForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(model_folder(MODEL)) / name, folder)
    return str(folder)


@pytest.mark.filterwarnings("ignore::scaffolding_ext.workers.shared.sampling_defaults.GreedyThinkingWarning")
@pytest.mark.parametrize("kernel", [True, False])
def test_a_model_with_a_window_is_served_exactly(windowed, monkeypatch, kernel):
    if not kernel:
        monkeypatch.setattr(attention, "kernel_serves", lambda *args: False)
    worker = HuggingFaceWorker(windowed)
    num_tokens = worker.max_seq_len - 3
    task = GenerationTask(input_tokens=[5, 6, 7], max_tokens=num_tokens, ignore_eos=True)
    statuses = run(worker, [task])
    worker.shutdown()
    assert statuses == [TaskStatus.SUCCESS]
    assert len(task.output_tokens) == num_tokens
    reference = MistralForCausalLM.from_pretrained(windowed).eval()
    with torch.inference_mode():
        logits = reference(torch.tensor([[5, 6, 7, *task.output_tokens]])).logits[0, 2:-1]
    chosen = logits.gather(-1, torch.tensor(task.output_tokens)[:, None])[:, 0]
    assert (logits.max(-1).values - chosen).max() <= float32_tolerance(longest_sum=128, num_sums=12, magnitude=32.0)


class Config:
    """The fields of a model's config."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


def test_which_attention_is_served():
    check_attention(Config(), 100)
    check_attention(Config(sliding_window=None, layer_types=["full_attention"]), 100)
    check_attention(Config(sliding_window=50, layer_types=["full_attention", "sliding_attention"]), 100)
    with pytest.raises(ConfigError, match="has layers of type linear_attention") as caught:
        check_attention(Config(layer_types=["linear_attention", "full_attention"]), 100)
    assert caught.value.key == "model"


# ---- memory


def test_the_memory_is_as_many_blocks_as_fit():
    worker = HuggingFaceWorker(MODEL, max_batch_size=4, max_seq_len=64, kv_cache_bytes=6 * BLOCK_BYTES - 1)
    tasks = [GenerationTask(input_tokens=[5, i], max_tokens=20) for i in range(6)]
    assert run(worker, tasks) == [TaskStatus.SUCCESS] * 6
    metrics = worker.metrics
    assert metrics.num_free_blocks + metrics.num_cached_blocks == 5
    assert worker._engine._batch._runner.kv.num_bytes == 5 * BLOCK_BYTES
    worker.shutdown()


def test_no_more_blocks_are_there_than_can_be_of_use():
    worker = HuggingFaceWorker(MODEL, max_batch_size=2, max_seq_len=33, prefix_cache_bytes=3 * BLOCK_BYTES)
    assert worker.metrics.num_free_blocks == 2 * 2 * 2 + 3
    worker.shutdown()


def test_where_no_request_fits_the_message_says_what_would():
    room = 2 * BLOCK_BYTES
    with pytest.raises(ConfigError, match=f"kv_cache_bytes is {room}.*: set max_seq_len to at most 64") as caught:
        HuggingFaceWorker(MODEL, kv_cache_bytes=room, max_seq_len=65)
    assert caught.value.key == "max_seq_len"
    with pytest.raises(ConfigError, match="choose a smaller model"):
        HuggingFaceWorker(MODEL, kv_cache_bytes=1)


def test_a_request_that_can_never_fit_is_refused_with_the_numbers():
    room = 2 * BLOCK_BYTES
    worker = HuggingFaceWorker(MODEL, kv_cache_bytes=room)
    assert worker.max_seq_len == 64
    refused = [
        GenerationTask(input_tokens=[5] * 5, max_tokens=60),
        GenerationTask(input_tokens=[5] * 64),
        ScoreTask(input_tokens=[5], continuation_tokens=[6] * 64),
    ]
    longest = GenerationTask(input_tokens=[5, 6], ignore_eos=True)
    *errors, status = run(worker, [*refused, longest])
    assert all(f"64 in all (kv_cache_bytes, {room}, holds no more)" in str(error) for error in errors)
    assert (status, len(longest.output_tokens)) == (TaskStatus.SUCCESS, 62)
    worker.shutdown()
