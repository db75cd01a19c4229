"""Decoding speed of the transformers engine against what the memory allows, on a random model of a given shape.

    python -m benchmarks.engines.huggingface_bandwidth --device cuda --shape 7b

A step must read every weight once, and the keys and values of every request: bytes by the measured bandwidth is the
limit.
"""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import click

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report

BATCHES = (1, 8, 64)
PROMPT_LEN = 128
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


def bandwidth(device: str, num_bytes: int) -> float:
    """Bytes a second that a copy reads and writes; the best of ten."""
    import torch

    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(10):
        _wait_for(device)
        started = time.perf_counter()
        target.copy_(source)
        _wait_for(device)
        best = min(best, time.perf_counter() - started)
    return 2 * num_bytes / best


def _wait_for(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.synchronize(device)


def decode_rate(model: Any, batch: int, num_tokens: int, threads: int) -> float:
    """Tokens a second while `batch` requests decode together, prompts not counted."""
    from tokenizers import Tokenizer, models

    from scaffolding_ext.workers.huggingface.engine_request import EngineRequest
    from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine
    from scaffolding_ext.workers.huggingface.request_parts import Ends, Kv
    from scaffolding_ext.workers.huggingface.sampling import SamplingParams

    engine = GenerationEngine(
        model,
        Tokenizer(models.BPE()),
        frozenset(),
        num_blocks=batch * -(-(PROMPT_LEN + num_tokens) // TOKENS_PER_BLOCK),
        tokens_per_block=TOKENS_PER_BLOCK,
        max_cached=0,
        max_batch_size=batch,
        prefill_chunk=2048,
        enable_block_reuse=False,
        threads=threads,
    )
    ended, reading = threading.Semaphore(0), threading.Semaphore(0)

    def note(request: EngineRequest) -> None:
        (ended if request.ended else reading).release()

    requests = []
    for row in range(batch):
        prompt = [1 + (row * 7 + place) % 500 for place in range(PROMPT_LEN)]
        sampling = SamplingParams(0.7, 0, 1.0, row)
        requests.append(
            EngineRequest(prompt, Ends(num_tokens, ignore_end=True), sampling, kv=Kv(keep=False), notify=note)
        )
        requests[-1].wanted = num_tokens // 8  # by then all prompts are read and the first kernels are warm
        engine.submit(requests[-1])
    for _ in requests:
        reading.acquire()
    before, started = engine.metrics.num_decoded, time.perf_counter()
    ended.acquire()
    rate = (engine.metrics.num_decoded - before) / (time.perf_counter() - started)
    engine.shutdown()
    return rate


@benchmark("engines.huggingface_bandwidth --device cuda --shape 7b")
@click.option("--device", default="cpu", show_default=True, help="A torch device.")
@click.option("--shape", type=click.Choice(list(SHAPES)), default="tiny", show_default=True, help="Size of the model.")
@click.option("--dtype", default=None, help="bfloat16 or float32.  [default: bfloat16 on CUDA, else float32]")
@size("--num_tokens", 256, quick=64, help="Tokens that each request decodes.")
@click.option("--threads", default=1, show_default=True, help="CPU threads of the engine.")
def main(report: Report, device: str, shape: str, dtype: str | None, num_tokens: int, threads: int) -> None:
    """Decoded tokens a second at batch 1, 8 and 64, beside the limit that the memory's bandwidth sets."""
    import torch

    dtype = dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    torch.set_num_threads(threads)
    sizes = SHAPES[shape]
    model = random_model(sizes, device, dtype, report.seed)
    element = model.dtype.itemsize
    weights = sum(p.numel() for name, p in model.named_parameters() if "embed_tokens" not in name) * element
    kv_token = 2 * sizes.num_hidden_layers * sizes.num_key_value_heads * element
    kv_token *= sizes.hidden_size // sizes.num_attention_heads
    speed = bandwidth(device, 2**32 if device.startswith("cuda") else 2**28)
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    report.setting |= {"device": name, "dtype": dtype, "prompt": PROMPT_LEN, "torch": torch.__version__}
    report.figure("bandwidth_gb_per_s", speed / 1e9)
    report.figure("weights_gb", weights / 1e9)
    for batch in track(BATCHES, "batches"):
        rate = decode_rate(model, batch, num_tokens, threads)
        length = PROMPT_LEN + num_tokens * 9 // 16  # the mean over the part that is measured
        limit = batch * speed / (weights + batch * length * kv_token)
        report.figure(f"tokens_per_s_{batch}", rate)
        report.figure(f"limit_tokens_per_s_{batch}", limit)
        report.figure(f"share_of_limit_{batch}", rate / limit)


if __name__ == "__main__":
    main()
