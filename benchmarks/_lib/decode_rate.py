"""A random model of a given shape, how fast the transformers engine decodes with it, and the memory's bandwidth."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

BATCHES = (1, 8, 64)
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


def decode_rate(model: Any, batch: int, num_tokens: int, threads: int, prompt_len: int) -> float:
    """Tokens a second while `batch` requests decode together, prompts not counted."""
    from tokenizers import Tokenizer, models

    from scaffolding_ext.workers.huggingface.continuous_batch import ContinuousBatch
    from scaffolding_ext.workers.huggingface.engine_request import Ends, EngineRequest, Kv
    from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine
    from scaffolding_ext.workers.huggingface.kv_limits import KVLimits
    from scaffolding_ext.workers.huggingface.sampling import SamplingParams

    served = ContinuousBatch(
        model,
        Tokenizer(models.BPE()),
        frozenset(),
        KVLimits(batch * -(-(prompt_len + num_tokens) // TOKENS_PER_BLOCK), TOKENS_PER_BLOCK, max_cached=0),
        max_batch_size=batch,
        prefill_chunk=2048,
        enable_block_reuse=False,
    )
    engine = GenerationEngine(served, threads)
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
    before, started = engine.metrics.num_decoded, time.perf_counter()
    ended.acquire()
    rate = (engine.metrics.num_decoded - before) / (time.perf_counter() - started)
    engine.shutdown()
    return rate
