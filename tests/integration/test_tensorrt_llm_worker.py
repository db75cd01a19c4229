"""TRTLLMWorker on the real TensorRT-LLM, with a GPU and a small checkpoint.

SCAFFOLDING_TRTLLM_MODEL=/models/small pytest -m integration tests/integration/test_tensorrt_llm_worker.py
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator

import pytest

from scaffolding_ext import protocol
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Worker
from scaffolding_ext.protocol.meta import token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WrappingWorker
from scaffolding_ext.testing.worker_contract import WORKER_CHECKS

MODEL = os.environ.get("SCAFFOLDING_TRTLLM_MODEL", "")
PROMPT = "The capital of France is Paris. The capital of Italy is"
TOLERANCE = 0.1  # nats, against transformers in bfloat16: other kernels, other rounding

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("default")]
if "is not installed: pip install" in protocol.WHY_STANDINS:  # on a machine that is meant to run these
    pytest.fail(f"tensorrt_llm is there, but {protocol.WHY_STANDINS}", pytrace=False)
if not protocol.UPSTREAM:
    pytest.skip(protocol.WHY_STANDINS or "tensorrt_llm is not installed", allow_module_level=True)
if not MODEL:
    pytest.skip("SCAFFOLDING_TRTLLM_MODEL names no checkpoint", allow_module_level=True)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    from scaffolding_ext.workers.trtllm.worker import TRTLLMWorker

    with TRTLLMWorker(MODEL, max_seq_len=1024, kv_cache_fraction=0.3, serve_scores=True) as made:
        yield made


class Kept(WrappingWorker):
    """The one worker under each check: loading the model for each would take minutes."""

    def shutdown(self) -> None:
        """Leave the worker to the fixture."""


@pytest.mark.parametrize("check", [check for check in WORKER_CHECKS if check.__name__ != "check_shutdown_ends_it"])
def test_contract(worker: Worker, check: Callable[..., None]) -> None:
    check(lambda: Kept(worker), PROMPT)


def test_scores_agree_with_transformers(worker: Worker) -> None:
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

    task, expected = (ScoreTask(input_str=PROMPT, continuation_str=" Rome, and that of Spain is Madrid.") for _ in "12")
    asyncio.run(worker.run_task(task))
    with HuggingFaceWorker(MODEL, dtype="bfloat16", device="cuda") as reference:
        asyncio.run(reference.run_task(expected))
    assert task.logprobs == pytest.approx(expected.logprobs, abs=TOLERANCE)


def test_a_stream_is_drained_and_cancelled(worker: Worker) -> None:
    async def scenario() -> StreamGenerationTask:
        task = StreamGenerationTask(input_str=PROMPT, max_tokens=512, ignore_eos=True, streaming_step=8)
        await worker.run_task(task)
        task.cancel_flag = True
        await worker.run_task(task)
        return task

    task = asyncio.run(scenario())
    assert task.end_flag
    assert 8 <= len(task.output_tokens or ()) < 512


def test_a_prefix_is_reused(worker: Worker) -> None:
    tasks = [GenerationTask(input_str=PROMPT * 20, max_tokens=1) for _ in range(2)]
    for task in tasks:
        asyncio.run(worker.run_task(task))
    counts = token_counts_of(tasks[1])
    assert counts is not None
    assert counts.reused > 0
