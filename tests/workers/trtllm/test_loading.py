"""TRTLLMWorker from an engine folder and from a checkpoint: what is read, checked, given to `LLM` and refused."""

from __future__ import annotations

import asyncio
import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.controllers.vote.deepconf import DeepConfController
from scaffolding_ext.errors import ConfigError, InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.tasks import ScoreTask

pytest.importorskip("torch")
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker

MODEL = "tinylm/draft"
BUILD = {
    "max_batch_size": 8,
    "max_seq_len": 256,
    "max_num_tokens": 256,
    "gather_context_logits": True,
    "gather_generation_logits": False,
    "kv_cache_type": "PAGED",
    "plugin_config": {"use_paged_context_fmha": True},
}
pytestmark = [
    pytest.mark.usefixtures("tensorrt_llm"),
    # of the older releases: `test_sampler.py`
]


@pytest.fixture
def engine_dir(tmp_path: Path) -> str:
    return write(tmp_path)


def write(folder: Path, **changed: Any) -> str:
    document = {"pretrained_config": {"vocab_size": 7}, "build_config": {**BUILD, **changed}}
    (folder / "config.json").write_text(json.dumps(document))
    return str(folder)


def args_of(worker: TRTLLMWorker) -> Any:
    return worker._loaded.llm.args


def test_an_engine_serves_with_what_it_was_built_for(engine_dir: str) -> None:
    ids = load_tokenizer(MODEL)("Start with 5. Apply a+3,b-2. Find the total.").input_ids
    with TRTLLMWorker.from_engine(engine_dir, MODEL) as worker, HuggingFaceWorker(MODEL) as reference:
        assert (worker.model, worker.max_seq_len, worker.tokens_per_block) == (MODEL, 256, None)
        generated = GenerationTask(input_tokens=ids, max_tokens=5, num_logprobs=2, temperature=0.0)
        asyncio.run(worker.run_task(generated))
        assert len(generated.logprobs) == len(generated.output_tokens or ()) == 5
        scored, expected = (ScoreTask(input_tokens=ids[:4], continuation_tokens=ids[4:]) for _ in range(2))
        asyncio.run(worker.run_task(scored))
        asyncio.run(reference.run_task(expected))
        assert scored.logprobs == pytest.approx(expected.logprobs, abs=1e-3)
        assert worker._loaded.llm.requests[-1]["params"].return_context_logits


def test_an_engine_that_lacks_something_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    folder = write(tmp_path, plugin_config={"use_paged_context_fmha": False})
    with pytest.raises(ConfigError, match=r"use_paged_context_fmha is off.*--use_paged_context_fmha enable"):
        TRTLLMWorker.from_engine(folder, MODEL)
    with TRTLLMWorker.from_engine(folder, MODEL, enable_block_reuse=False) as worker:
        assert not args_of(worker).kv_cache_config.enable_block_reuse
    with pytest.raises(ConfigError, match=r"max_seq_len is 256, but the stack needs 512.*--max_seq_len 512"):
        TRTLLMWorker.from_engine(folder, MODEL, enable_block_reuse=False, max_seq_len=512)


def test_an_engine_without_logits_of_the_prompt_serves_no_scores(tmp_path: Path) -> None:
    folder = write(tmp_path, gather_context_logits=False)
    with TRTLLMWorker.from_engine(folder, MODEL) as worker:
        assert ScoreTask not in worker.task_handlers
        assert "--gather_context_logits" in worker.refused["ScoreTask"]
    with pytest.raises(ConfigError, match="gather_context_logits is off"):
        TRTLLMWorker.from_engine(folder, MODEL, serve_scores=True)


@pytest.mark.parametrize("tensorrt_llm", ["newest"], indirect=True)
def test_a_release_without_engines_says_what_to_do(engine_dir: str) -> None:
    with pytest.raises(ConfigError, match=r"no longer runs TensorRT engines.*TRTLLMWorker\(MODEL\)"):
        TRTLLMWorker.from_engine(engine_dir, MODEL)


def test_an_engine_has_no_tokenizer_of_its_own(engine_dir: str) -> None:
    with pytest.raises(ConfigError, match="tokenizer: is missing, but an engine folder holds no tokenizer"):
        TRTLLMWorker(engine_dir)


def test_a_checkpoint_gets_its_share_and_everything_else_goes_to_the_llm() -> None:
    llm_args = {"disable_overlap_scheduler": True}
    with TRTLLMWorker(MODEL, kv_cache_fraction=0.4, max_seq_len=128, llm_args=llm_args) as worker:
        args = args_of(worker)
        assert args.kv_cache_config.free_gpu_memory_fraction == 0.4
        assert (args.max_seq_len, args.disable_overlap_scheduler) == (128, True)
        assert worker.max_seq_len == 128


@pytest.mark.parametrize("tensorrt_llm", ["1.2.1", "newest"], indirect=True)
def test_the_arguments_of_upstreams_worker_serve(tensorrt_llm: Any) -> None:
    scheduler = importlib.import_module("tensorrt_llm.llmapi").SchedulerConfig(capacity_scheduler_policy="STATIC_BATCH")
    with TRTLLMWorker.init_with_new_llm(MODEL, "pytorch", 8, 2048, 0.3, True, scheduler) as worker:
        args = args_of(worker)
        assert (args.kv_cache_config.free_gpu_memory_fraction, args.disable_overlap_scheduler) == (0.3, True)
        assert args.scheduler_config.capacity_scheduler_policy == "STATIC_BATCH"
    with TRTLLMWorker.init_with_new_llm(MODEL) as worker:
        assert args_of(worker).kv_cache_config.free_gpu_memory_fraction == 0.8
    llm = tensorrt_llm.LLM(model_folder(MODEL))
    try:
        with TRTLLMWorker(llm, load_tokenizer(MODEL)) as worker:
            assert worker.model == model_folder(MODEL)
            asyncio.run(worker.run_task(GenerationTask(input_str="5", max_tokens=1)))
        with pytest.raises(ConfigError, match="tokenizer: must be a folder or a name, unless the model is a loaded"):
            TRTLLMWorker(MODEL, load_tokenizer(MODEL))
    finally:
        llm.shutdown()


def test_without_a_length_the_models_own_holds() -> None:
    config = json.loads((Path(model_folder(MODEL)) / "config.json").read_text())
    with TRTLLMWorker(MODEL) as worker:
        assert worker.max_seq_len == config["max_position_embeddings"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kv_cache_fraction": 1.5}, "kv_cache_fraction: is 1.5; it must be above 0 and at most 1"),
        ({"llm_args": {"kv_cache_config": 1}}, "llm_args.kv_cache_config: is 1; it must be a mapping of fields"),
        (
            {"llm_args": {"kv_cache_config": {"free_gpu_memory_fraction": 1}}},
            "set kv_cache_fraction instead",
        ),
        (
            {"llm_args": {"kv_cache_config": {"colour": 1}}},
            "kv_cache_config: is .*the KvCacheConfig of this release refuses it",
        ),
    ],
)
def test_arguments_that_are_wrong_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TRTLLMWorker(MODEL, **arguments)


def test_what_else_the_kv_cache_is_told_goes_to_the_llm() -> None:
    given = {"dtype": "fp8", "host_cache_size": 1 << 30, "secondary_offload_min_priority": 30}
    with TRTLLMWorker(MODEL, kv_cache_fraction=0.4, llm_args={"kv_cache_config": given}) as worker:
        config = args_of(worker).kv_cache_config
        assert (config.dtype, config.free_gpu_memory_fraction, config.enable_block_reuse) == ("fp8", 0.4, True)
        assert (config.host_cache_size, config.secondary_offload_min_priority) == (1 << 30, 30)


@pytest.mark.parametrize(
    ("arguments", "tokens_per_block"),
    [
        ({}, 32),
        ({"llm_args": {"kv_cache_config": {"tokens_per_block": 64}}}, 64),
        ({"enable_block_reuse": False}, None),  # no request shares a block
    ],
)
def test_the_worker_says_how_long_a_shared_block_is(arguments: dict[str, Any], tokens_per_block: int | None) -> None:
    with TRTLLMWorker(MODEL, **arguments) as worker:
        assert worker.tokens_per_block == tokens_per_block


@pytest.mark.parametrize(
    ("arguments", "is_chunked"),
    [
        ({"max_seq_len": 256, "max_num_tokens": 128}, True),
        ({"max_seq_len": 128, "max_num_tokens": 128}, False),
        ({"max_num_tokens": 64}, True),  # the model's own context is longer
        ({"max_seq_len": 256}, False),  # a step reads 8192
    ],
)
def test_long_chains_are_read_in_steps(arguments: dict[str, Any], is_chunked: bool) -> None:
    with TRTLLMWorker(MODEL, **arguments) as worker:
        assert args_of(worker).enable_chunked_prefill is is_chunked
        task = GenerationTask(input_tokens=[5] * 100, max_tokens=1)
        asyncio.run(worker.run_task(task))
        assert task.output_tokens


def test_an_engine_reads_a_long_chain_in_steps_if_it_can(tmp_path: Path) -> None:
    """One that cannot serves only what fits into a step, and is refused if the stack asks for more."""
    task = GenerationTask(input_tokens=[5] * 200, max_tokens=4)
    with TRTLLMWorker.from_engine(write(tmp_path, max_num_tokens=64), MODEL, max_seq_len=256) as worker:
        assert asyncio.run(worker.run_task(task)) is TaskStatus.SUCCESS
    unpaged = write(tmp_path, max_num_tokens=64, plugin_config={"use_paged_context_fmha": False})
    with pytest.raises(ConfigError, match="max_num_tokens is 64, but a prompt may have 255 tokens"):
        TRTLLMWorker.from_engine(unpaged, MODEL, enable_block_reuse=False, max_seq_len=256)
    with TRTLLMWorker.from_engine(unpaged, MODEL, enable_block_reuse=False) as worker:
        assert worker.max_seq_len == 65
        asyncio.run(worker.run_task(GenerationTask(input_tokens=[5] * 64, max_tokens=1)))
        with pytest.raises(InvalidTaskError, match="65"):
            asyncio.run(worker.run_task(task))


def test_chains_that_nothing_can_read_are_refused_at_load(tensorrt_llm: Any) -> None:
    with pytest.raises(ConfigError, match="enable_chunked_prefill: is False, but requests may have 256 tokens"):
        TRTLLMWorker(MODEL, max_seq_len=256, max_num_tokens=64, llm_args={"enable_chunked_prefill": False})
    llm = tensorrt_llm.LLM(model_folder(MODEL), max_num_tokens=64)
    try:
        with pytest.raises(ConfigError, match=r"max_seq_len: is 256, but the LLM was loaded with max_num_tokens=64"):
            TRTLLMWorker(llm, max_seq_len=256)
        assert TRTLLMWorker(llm).max_seq_len == 65  # a prompt of one step, and a token
    finally:
        llm.shutdown()


@pytest.mark.parametrize(
    ("arguments", "fraction"),
    [
        ({}, 0.8),
        ({"serve_scores": True}, 0.8),
        ({"serve_scores": True, "kv_cache_fraction": 0.85}, 0.85),
        ({"serve_scores": False}, 0.9),
    ],
)
def test_a_worker_that_serves_scores_leaves_memory_for_their_logits(arguments: dict[str, Any], fraction: float) -> None:
    settings = {"enable_block_reuse": False, **arguments}
    with TRTLLMWorker(MODEL, **settings) as worker:
        assert worker._loaded.argument("kv_cache_config").free_gpu_memory_fraction == fraction
    assert TRTLLMWorker.memory_share({"model": MODEL, **settings}) == fraction


def test_an_engine_without_logprobs_refuses_what_reads_them(engine_dir: str) -> None:
    async def scenario(worker: TRTLLMWorker) -> None:
        await worker.run_task(GenerationTask(input_tokens=[5], max_tokens=4, temperature=0.0))
        with pytest.raises(InvalidTaskError, match=r"num_logprobs is 2, but its engine .* serve_logprobs to True"):
            await worker.run_task(GenerationTask(input_tokens=[5], max_tokens=4, temperature=0.0, num_logprobs=2))

    with TRTLLMWorker.from_engine(engine_dir, MODEL, serve_logprobs=False) as worker:
        assert not worker._loaded.argument("gather_generation_logits")
        assert worker.max_num_logprobs == 0
        assert not {VerifyTask, BranchTask} & worker.task_handlers.keys()
        asyncio.run(scenario(worker))
        with pytest.raises(ConfigError, match=r"at most 0 tokens"):
            DeepConfController(sampling_params={"temperature": 1.0}).bind({"generation": worker})
    with TRTLLMWorker.from_engine(engine_dir, MODEL) as worker:
        assert worker._loaded.argument("gather_generation_logits")
        assert {VerifyTask, BranchTask} <= worker.task_handlers.keys()
