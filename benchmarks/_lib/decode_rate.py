"""Random models in the shapes of real ones, and the memory's bandwidth."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

BATCHES = (1, 8, 64)


class Shape(NamedTuple):
    """Sizes of a Llama model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int


SHAPES = {
    "8b": Shape(128256, 4096, 14336, 32, 32, 8),  # as Llama-3.1-8B
    "7b": Shape(152064, 3584, 18944, 28, 28, 4),  # as Qwen2.5-7B
    "1.5b": Shape(151936, 1536, 8960, 28, 12, 2),  # as Qwen2.5-1.5B
    "30m": Shape(8192, 512, 1536, 8, 8, 4),
    "tiny": Shape(512, 256, 768, 4, 8, 4),
}


def random_model(shape: Shape, device: str, dtype: str, seed: int) -> Any:
    """A randomly initialised Llama on its device, with this package's attention."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from scaffolding_ext.workers.huggingface.attention import ATTENTION

    torch.manual_seed(seed)
    default = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device):
            model = LlamaForCausalLM(LlamaConfig(**shape._asdict(), max_position_embeddings=8192)).eval()
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
