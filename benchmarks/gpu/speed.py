"""Speed on a GPU: our transformers engine beside transformers' own, and TRTLLMWorker beside a bare LLM.

    python -m benchmarks.gpu.speed --device cuda --shape 7b --model /models/r1-distill-8b

The transformers engine decodes on random weights of a shape, at batch 1, 8 and 64, beside `generate` (one padded
batch), `generate_batch` (continuous batching, where the installed release has it) and the memory's bandwidth.
TRTLLMWorker and a bare `LLM.generate_async` serve the same requests of a checkpoint, in turn.
"""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Awaitable, Callable
from typing import Any

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.decode_rate import BATCHES, SHAPES, bandwidth, decode_rate, random_model
from benchmarks._lib.report import Report
from scaffolding_ext import TRTLLMWorker
from scaffolding_ext.protocol import GenerationTask

LEAST_RATIO = 1.0  # of our decoding speed to `generate`'s
MOST_OVERHEAD = 0.1  # of a request's seconds, beside the bare LLM


def generate_rate(model: Any, batch: int, num_tokens: int, prompt_len: int) -> float:
    """Tokens a second of one padded `generate`, its prompts counted."""
    import torch

    ids = torch.arange(1, 1 + batch * prompt_len, device=model.device).remainder(500).reshape(batch, prompt_len)
    fields = {"do_sample": False, "min_new_tokens": num_tokens, "pad_token_id": 0}
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, **fields)  # kernels get warm
    started = time.perf_counter()
    model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, **fields)
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return batch * num_tokens / (time.perf_counter() - started)


def generate_batch_rate(model: Any, batch: int, num_tokens: int, prompt_len: int) -> float | None:
    """Tokens a second of transformers' continuous batching; None where it is missing or does not run here."""
    from transformers import GenerationConfig

    if not hasattr(model, "generate_batch") or model.device.type == "cpu":  # there it takes seconds a token
        return None
    prompts = [[1 + (row * 7 + place) % 500 for place in range(prompt_len)] for row in range(batch)]
    config = GenerationConfig(max_new_tokens=num_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    try:
        started = time.perf_counter()
        outputs = model.generate_batch(inputs=prompts, generation_config=config)
    except Exception as error:  # of any type: it needs an attention that is not everywhere
        click.echo(f"generate_batch does not run here: {type(error).__name__}: {error}", err=True)
        return None
    num_drawn = sum(len(output.generated_tokens) for output in outputs.values())
    return num_drawn / (time.perf_counter() - started) if num_drawn else None


def engine_beside_transformers(
    report: Report, device: str, shape: str, num_tokens: int, prompt_len: int, threads: int
) -> None:
    """Decoded tokens a second by batch, beside `generate`, `generate_batch` and the memory's bandwidth."""
    import torch

    on_gpu = device.startswith("cuda")
    torch.set_num_threads(threads)
    sizes = SHAPES[shape]
    model = random_model(sizes, device, "bfloat16" if on_gpu else "float32", report.seed)
    element = model.dtype.itemsize
    weights = sum(p.numel() for name, p in model.named_parameters() if "embed_tokens" not in name) * element
    kv_token = 2 * sizes.num_hidden_layers * sizes.num_key_value_heads * element
    kv_token *= sizes.hidden_size // sizes.num_attention_heads
    speed = bandwidth(device, 2**32 if on_gpu else 2**28)
    report.setting |= {"device": torch.cuda.get_device_name(device) if on_gpu else "cpu", "torch": torch.__version__}
    report.figure("bandwidth_gb_per_s", speed / 1e9)
    for batch in track(BATCHES, "batches"):
        ours = decode_rate(model, batch, num_tokens, threads, prompt_len)
        model.set_attn_implementation("sdpa")
        theirs = generate_rate(model, batch, num_tokens, prompt_len)
        continuous = generate_batch_rate(model, batch, num_tokens, prompt_len)
        model.set_attn_implementation(_our_attention())
        limit = batch * speed / (weights + batch * (prompt_len + num_tokens / 2) * kv_token)
        report.figure(f"batch {batch}: tokens a second", ours)
        report.figure(f"batch {batch}: tokens a second of generate", theirs)
        if continuous is not None:
            report.figure(f"batch {batch}: tokens a second of generate_batch", continuous)
        report.figure(f"batch {batch}: share of the memory's limit", ours / limit)
        report.figure(f"batch {batch}: ratio to generate", ours / theirs)
        if on_gpu:
            report.bar(f"batch {batch}: ratio to generate", ours / theirs, ">=", LEAST_RATIO)


def _our_attention() -> str:
    from scaffolding_ext.workers.huggingface.attention import ATTENTION

    return ATTENTION


def worker_beside_llm(
    report: Report, model: str, num_requests: int, num_tokens: int, repetitions: int, on_gpu: bool
) -> None:
    """Seconds of the same requests through TRTLLMWorker and through a bare `LLM.generate_async`."""
    with TRTLLMWorker(model, max_seq_len=1024, self_test=False) as worker:
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
            params = [loaded.release.sampling_params(max_tokens=num_tokens, top_k=1, ignore_eos=True) for _ in prompts]
            results = [
                loaded.llm.generate_async(ids, sampling_params=own) for ids, own in zip(prompts, params, strict=True)
            ]
            for result in results:
                await result
            return sum(len(result.outputs[0].token_ids) for result in results)

        async def on_the_llms_loop() -> int:  # the only loop from which the LLM may be used now
            return await worker._client._loop.run(bare)

        seconds: dict[str, list[float]] = {"ours": [], "bare": []}
        sides: list[tuple[str, Callable[[], Awaitable[int]]]] = [("ours", ours), ("bare", on_the_llms_loop)]
        asyncio.run(_awaited(ours))  # kernels get warm
        for number in range(repetitions):
            for name, side in sides if number % 2 == 0 else reversed(sides):
                started = time.perf_counter()
                num_drawn = asyncio.run(_awaited(side))
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
    if on_gpu:
        report.bar("TRTLLMWorker: share of the seconds more", share, "<=", MOST_OVERHEAD)


async def _awaited(work: Callable[[], Awaitable[int]]) -> int:
    return await work()


@benchmark("gpu.speed --device cuda --shape 7b --model /models/small", fails=True)
@click.option("--device", default="cpu", show_default=True, help="A torch device.")
@click.option(
    "--shape", type=click.Choice(list(SHAPES)), default="tiny", show_default=True, help="Of the random model."
)
@click.option(
    "--model", default="tinylm/draft", show_default=True, help="What TensorRT-LLM serves, where it is installed."
)
@size("--num_tokens", 256, quick=32, help="Tokens that each request decodes.")
@size("--prompt_len", 512, quick=32, help="Tokens of a prompt.")
@size("--num_requests", 64, quick=8, help="Requests that run at once on TensorRT-LLM.")
@size("--repetitions", 8, quick=2, help="Rounds of each side.", least=2)
@click.option("--threads", default=1, show_default=True, help="CPU threads of the transformers engine.")
def main(
    report: Report,
    device: str,
    shape: str,
    model: str,
    num_tokens: int,
    prompt_len: int,
    num_requests: int,
    repetitions: int,
    threads: int,
) -> None:
    """Our engine beside transformers', TRTLLMWorker beside a bare LLM; on a GPU, exit code 1 if a bar fails."""
    engine_beside_transformers(report, device, shape, num_tokens, prompt_len, threads)
    if importlib.util.find_spec("tensorrt_llm") is not None:
        worker_beside_llm(report, model, num_requests, num_tokens, repetitions, device.startswith("cuda"))


if __name__ == "__main__":
    main()
