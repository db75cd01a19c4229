"""What the transformers engine costs, in function calls of its thread for a decoded token."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

NUM_REQUESTS, NUM_TOKENS = 32, 64


def test_a_token_of_32_requests(call_count: Any, within_ceiling: Callable[[str, float], None]) -> None:
    threading.setprofile(lambda *_: call_count.start())  # the next thread, which is the engine's, counts what it calls
    try:
        worker = HuggingFaceWorker("tinylm/draft", seed=0, threads=1)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]  # what resets it

    async def run(num_tokens: int) -> int:
        tasks = [
            GenerationTask(input_tokens=[5, 6, 7 + index], max_tokens=num_tokens, ignore_eos=True)
            for index in range(NUM_REQUESTS)
        ]
        await asyncio.gather(*[worker.run_task(task) for task in tasks])
        return sum(len(task.output_tokens or ()) for task in tasks)

    try:
        asyncio.run(run(4))
        before = call_count.num
        num_tokens = asyncio.run(run(NUM_TOKENS))
        assert num_tokens == NUM_REQUESTS * NUM_TOKENS
        within_ceiling("engine, calls a token of 32 requests", (call_count.num - before) / num_tokens)
    finally:
        worker.shutdown()
