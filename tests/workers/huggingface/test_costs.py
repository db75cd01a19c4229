"""The cost of the transformers engine, in function calls of its thread for a decoded token."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

NUM_TOKENS = 16


def test_a_token_of_32_requests_costs_a_fraction_of_one_of_four(call_count: Any) -> None:
    threading.setprofile(lambda *_: call_count.start())  # the next thread, which is the engine's, counts what it calls
    try:
        worker = HuggingFaceWorker("tinylm/draft", seed=0, threads=1)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]  # what resets it

    async def run(num_requests: int, num_tokens: int) -> None:
        tasks = [
            GenerationTask(input_tokens=[5, 6, 7 + index], max_tokens=num_tokens, ignore_eos=True)
            for index in range(num_requests)
        ]
        await asyncio.gather(*[worker.run_task(task) for task in tasks])
        assert [len(task.output_tokens or ()) for task in tasks] == [num_tokens] * num_requests

    def calls_a_token(num_requests: int) -> float:
        before = call_count.num
        asyncio.run(run(num_requests, NUM_TOKENS))
        return float(call_count.num - before) / (num_requests * NUM_TOKENS)

    try:
        asyncio.run(run(4, 4))
        assert 0 < calls_a_token(32) <= calls_a_token(4) / 3
    finally:
        worker.shutdown()
