"""Decoding speed of the transformers engine against what the memory allows, on a random model of a given shape.

    python -m benchmarks.engines.huggingface_bandwidth --device cuda --shape 7b

A step must read every weight once, and the keys and values of every request: bytes by the measured bandwidth is the
limit. On a CPU with one thread both are measured in CPU seconds, since the machine may be shared.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report

BATCHES = (1, 8, 64)
PROMPT_LENS = (128, 512)
GOAL = 0.6  # of the limit
TOKENS_PER_BLOCK = 32


class Shape(NamedTuple):
    """Sizes of a Llama model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int


SHAPES = {
    "7b": Shape(152064, 3584, 18944, 28, 28, 4),  # as Qwen2.5-7B
    "30m": Shape(8192, 512, 1536, 8, 8, 4),
    "tiny": Shape(512, 256, 768, 4, 8, 4),
}


def random_model(shape: Shape, device: str, dtype: str, seed: int) -> Any:
    """A randomly initialised Llama on its device, with this package's attention."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from scaffolding_ext.workers.huggingface.attention import ATTENTION, register

    torch.manual_seed(seed)
    register()
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device):
            model = LlamaForCausalLM(LlamaConfig(**shape._asdict(), max_position_embeddings=4096)).eval()
    finally:
        torch.set_default_dtype(default)
    model.set_attn_implementation(ATTENTION)
    return model


def bandwidth(device: str, num_bytes: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Bytes a second that a copy reads and writes; the best of ten."""
    import torch

    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(10):
        _wait_for(device)
        started = clock()
        target.copy_(source)
        _wait_for(device)
        best = min(best, clock() - started)
    return 2 * num_bytes / best


def _wait_for(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def decode_rate(
    model: Any,
    batch: int,
    num_tokens: int,
    threads: int,
    prompt_len: int,
    clock: Callable[[], float] = time.perf_counter,
    kv_cache_dtype: str | None = None,
) -> float:
    """Tokens a second while `batch` requests decode together, prompts not counted."""
    import torch
    from tokenizers import Tokenizer, models

    from scaffolding_ext.workers.huggingface.engine_request import Ends, EngineRequest, Kv
    from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine
    from scaffolding_ext.workers.huggingface.sampling import SamplingParams

    engine = GenerationEngine(
        model,
        Tokenizer(models.BPE()),
        frozenset(),
        num_blocks=batch * -(-(prompt_len + num_tokens) // TOKENS_PER_BLOCK),
        tokens_per_block=TOKENS_PER_BLOCK,
        max_cached=0,
        max_batch_size=batch,
        prefill_chunk=2048,
        enable_block_reuse=False,
        threads=threads,
        kv_dtype=None if kv_cache_dtype is None else getattr(torch, kv_cache_dtype),
    )
    ended, reading = threading.Semaphore(0), threading.Semaphore(0)

    def note(request: EngineRequest) -> None:
        (ended if request.ended else reading).release()

    requests = []
    for row in range(batch):
        prompt = [1 + (row * 7 + place) % 500 for place in range(prompt_len)]
        sampling = SamplingParams(0.7, 0, 1.0, row)
        requests.append(
            EngineRequest(prompt, Ends(num_tokens, ignore_end=True), sampling, kv=Kv(keep=False), notify=note)
        )
        requests[-1].wanted = num_tokens // 8  # by then all prompts are read and the first kernels are warm
        engine.submit(requests[-1])
    for _ in requests:
        reading.acquire()
    before, started = engine.metrics.num_decoded, clock()
    ended.acquire()
    rate = (engine.metrics.num_decoded - before) / (clock() - started)
    engine.shutdown()
    return rate


@benchmark("engines.huggingface_bandwidth --device cuda --shape 7b")
@click.option("--device", default="cpu", show_default=True, help="A torch device.")
@click.option("--shape", type=click.Choice(list(SHAPES)), default="tiny", show_default=True, help="Size of the model.")
@click.option("--dtype", default=None, help="bfloat16 or float32.  [default: bfloat16 on CUDA, else float32]")
@size("--num_tokens", 256, quick=64, help="Tokens that each request decodes.")
@click.option("--kv_cache_dtype", default=None, help="float16: of keys and values, on a CPU.")
@click.option("--threads", default=1, show_default=True, help="CPU threads of the engine.")
def main(
    report: Report,
    device: str,
    shape: str,
    dtype: str | None,
    num_tokens: int,
    kv_cache_dtype: str | None,
    threads: int,
) -> None:
    """Decoded tokens a second at batch 1, 8 and 64 and two lengths, beside the limit that the memory sets."""
    import torch

    clock = time.perf_counter if device.startswith("cuda") or threads > 1 else time.process_time

    dtype = dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    torch.set_num_threads(threads)
    sizes = SHAPES[shape]
    model = random_model(sizes, device, dtype, report.seed)
    element = model.dtype.itemsize
    weights = sum(p.numel() for name, p in model.named_parameters() if "embed_tokens" not in name) * element
    kept = element if kv_cache_dtype is None else getattr(torch, kv_cache_dtype).itemsize
    kv_token = 2 * sizes.num_hidden_layers * sizes.num_key_value_heads * kept
    kv_token *= sizes.hidden_size // sizes.num_attention_heads
    speed = bandwidth(device, 2**32 if device.startswith("cuda") else 2**28, clock)
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    lens = PROMPT_LENS[:1] if report.setting["quick"] else PROMPT_LENS
    report.setting |= {"device": name, "dtype": dtype, "prompts": lens, "torch": torch.__version__}
    report.setting |= {"seconds": "of the CPU" if clock is time.process_time else "of the clock"}
    report.setting["load_at_start"] = os.getloadavg()[0]
    report.figure("bandwidth_gb_per_s", speed / 1e9)
    report.figure("weights_gb", weights / 1e9)
    for batch, prompt_len in track([(batch, length) for length in lens for batch in BATCHES], "settings"):
        rate = decode_rate(model, batch, num_tokens, threads, prompt_len, clock, kv_cache_dtype)
        length = prompt_len + num_tokens * 9 // 16  # the mean over the part that is measured
        limit = batch * speed / (weights + batch * length * kv_token)
        place = f"of {batch} behind {prompt_len} tokens"
        report.figure(f"tokens a second, {place}", rate)
        report.figure(f"limit of tokens a second, {place}", limit)
        report.figure(f"share of the limit, {place}", rate / limit)
        report.bar(f"share of the limit, {place}", rate / limit, ">=", GOAL)


if __name__ == "__main__":
    main()
