"""Speed of TRTLLMWorker beside a bare LLM.

    python -m benchmarks.gpu.speed --model /models/r1-distill-8b

TRTLLMWorker and a bare `LLM.generate_async` serve the same requests of a checkpoint, in turn.
"""

from __future__ import annotations

import asyncio
import time

import click
import numpy as np
import torch

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.report import Report
from scaffolding_ext import TRTLLMWorker
from scaffolding_ext.protocol import GenerationTask

MOST_OVERHEAD = 0.1  # of a request's seconds, beside the bare LLM


@benchmark("gpu.speed --model /models/small", fails=True)
@click.option("--model", default="tinylm/draft", show_default=True, help="A checkpoint that TensorRT-LLM serves.")
@size("--num_tokens", 256, quick=32, help="Tokens that each request decodes.")
@size("--num_requests", 64, quick=8, help="Requests that run at once.")
@size("--repetitions", 8, quick=2, help="Rounds of each side.", least=2)
def main(report: Report, model: str, num_requests: int, num_tokens: int, repetitions: int) -> None:
    """Time TRTLLMWorker beside a bare LLM; on a GPU, the exit code is 1 if it takes more than a tenth longer."""
    with TRTLLMWorker(model, max_seq_len=1024) as worker:
        loaded = worker._loaded
        prompts = [
            worker._reader.ids(None, f"Question {number}: 1 + {number} =", "input") for number in range(num_requests)
        ]

        async def ours() -> int:
            tasks = [
                GenerationTask(input_tokens=ids, max_tokens=num_tokens, temperature=0.0, ignore_eos=True)
                for ids in prompts
            ]
            await asyncio.gather(*map(worker.run_task, tasks))
            return sum(len(task.output_tokens or ()) for task in tasks)

        async def bare() -> int:
            kind = loaded.release.setting("SamplingParams")
            params = [kind(max_tokens=num_tokens, top_k=1, ignore_eos=True) for _ in prompts]
            results = [
                loaded.llm.generate_async(ids, sampling_params=own) for ids, own in zip(prompts, params, strict=True)
            ]
            for result in results:
                await result
            return sum(len(result.outputs[0].token_ids) for result in results)

        async def on_the_llms_loop() -> int:  # the only loop from which the LLM may be used now
            return await worker._client._loop.run(bare)

        seconds: dict[str, list[float]] = {"ours": [], "bare": []}
        sides = [("ours", ours), ("bare", on_the_llms_loop)]
        asyncio.run(ours())  # kernels get warm
        for number in range(repetitions):
            for name, side in sides if number % 2 == 0 else reversed(sides):
                started = time.perf_counter()
                num_drawn = asyncio.run(side())
                seconds[name].append(time.perf_counter() - started)
                if num_drawn != num_requests * num_tokens:
                    raise click.ClickException(f"{name} drew {num_drawn} of {num_requests * num_tokens} tokens")
    report.setting["tensorrt_llm"] = loaded.release.version
    report.difference("TRTLLMWorker: seconds of a round", seconds["ours"])
    report.difference("bare LLM: seconds of a round", seconds["bare"])
    more = np.median(seconds["ours"]) - np.median(seconds["bare"])
    report.figure("TRTLLMWorker: microseconds more a request", 1e6 * float(more) / num_requests)
    share = float(more / np.median(seconds["bare"]))
    report.figure("TRTLLMWorker: share of the seconds more", share)
    if torch.cuda.is_available():
        report.bar("TRTLLMWorker: share of the seconds more", share, "<=", MOST_OVERHEAD)


if __name__ == "__main__":
    main()
