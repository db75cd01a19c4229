"""How many blocks of keys and values fit into the memory, and how long a request can be."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from scaffolding_ext.errors import ConfigError

DEFAULT_KV_BYTES = 4 * 2**30  # where the device does not tell its free memory
_SHARE_OF_FREE = 0.8  # of a CUDA device's free memory; the rest is for activations
_HELD_PER_PLACE = 2  # a chain and its probe


class KVLimits(NamedTuple):
    """How many blocks and tokens fit into the memory for keys and values.

    Attributes:
        num_blocks: Blocks in all.
        max_cached: Blocks that may stay as cache.
        max_seq_len: Prompt and generated tokens of one request at most.
        limited_by: Why a request may not be longer, if the memory is the reason; otherwise empty.
    """

    num_blocks: int
    max_cached: int
    max_seq_len: int
    limited_by: str


def rounded_to(dtype: str, kv_cache_dtype: str | None) -> torch.dtype | None:
    """The type in which keys and values are kept; None if they stay as the model computes them."""
    return None if kv_cache_dtype in (None, dtype) else getattr(torch, str(kv_cache_dtype))


def token_bytes(network: Any, kv_dtype: torch.dtype | None = None) -> int:
    """Memory of the keys and values of one token, measured by a pass over one token; `kv_dtype` as in `KVBlocks`."""
    from scaffolding_ext.workers.huggingface.block_pool import Block
    from scaffolding_ext.workers.huggingface.engine_request import Ends, EngineRequest, Work
    from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks
    from scaffolding_ext.workers.huggingface.model_runner import ModelRunner
    from scaffolding_ext.workers.huggingface.sampling import GREEDY

    kv = KVBlocks(1, 1, kv_dtype)
    request = EngineRequest([0], Ends(), GREEDY, notify=lambda _: None)
    request.sequence.add(Block(0))
    with torch.inference_mode():
        ModelRunner(network, kv).forward([Work(request, 1)])
    return kv.num_bytes // 2  # one additional block is allocated


def kv_limits(
    network: Any,
    *,
    max_batch_size: int,
    max_seq_len: int | None,
    context_len: int,
    tokens_per_block: int,
    kv_cache_bytes: int | None,
    prefix_cache_bytes: int,
    kv_dtype: torch.dtype | None = None,
) -> KVLimits:
    """How many blocks fit into the memory for keys and values, and how long a request can be.

    Args:
        network: The model, on its device.
        max_batch_size: There are not more blocks than so many requests and their probes can fill.
        max_seq_len: Most tokens of a request; None takes the model's context, or the length that fits, if that is less.
        kv_cache_bytes: The memory; None takes 4 GiB, or 80 % of the free memory of a CUDA device.
        prefix_cache_bytes: The part of this memory that may stay as cache.

    Raises:
        ConfigError: Not even one block fits, or not even one request of the wanted length.
    """
    if kv_cache_bytes is not None:
        room = kv_cache_bytes
    elif network.device.type == "cuda":
        room = int(torch.cuda.mem_get_info(network.device)[0] * _SHARE_OF_FREE)
    else:
        room = DEFAULT_KV_BYTES
    block_bytes = max(1, token_bytes(network, kv_dtype) * tokens_per_block)  # a model may have no keys and values
    num_fitting = room // block_bytes - 1  # one additional block is for padding
    longest = num_fitting * tokens_per_block
    if (max_seq_len or 1) > longest:
        advice = f"set max_seq_len to at most {longest}" if longest >= 1 else "choose a smaller model"
        raise ConfigError(
            f"is {max_seq_len or context_len}, but kv_cache_bytes is {room}, which holds {max(num_fitting, 0)} blocks "
            f"of {tokens_per_block} tokens ({block_bytes} bytes each): {advice}, or raise kv_cache_bytes",
            "max_seq_len",
        )
    served = max_seq_len or min(context_len, longest)
    max_cached = prefix_cache_bytes // block_bytes
    num_useful = _HELD_PER_PLACE * max_batch_size * -(-served // tokens_per_block) + max_cached
    limited_by = f"kv_cache_bytes, {room}, holds no more" if served < (max_seq_len or context_len) else ""
    return KVLimits(min(num_fitting, num_useful), max_cached, served, limited_by)
