"""Memory for keys and values: its number of blocks, and the maximum length of a request."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.workers.huggingface.block_pool import BlockPool
from scaffolding_ext.workers.huggingface.engine_request import Ends, EngineRequest, Work
from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks
from scaffolding_ext.workers.huggingface.model_runner import ModelRunner
from scaffolding_ext.workers.huggingface.sampling import GREEDY

DEFAULT_KV_BYTES = 4 * 2**30  # if the device does not report its free memory
_SHARE_OF_FREE = 0.8  # of a CUDA device's free memory; the rest is for activations
_HELD_PER_PLACE = 2  # a chain and its probe


class KVLimits(NamedTuple):
    """Capacity of the memory for keys and values."""

    num_blocks: int  # total
    tokens_per_block: int
    max_cached: int  # blocks that may stay as cache
    max_seq_len: int = 0  # maximum prompt and generated tokens of one request
    limited_by: str = ""  # reason for this maximum, if it is the memory


def token_bytes(network: Any) -> int:
    """Measure the memory of one token's keys and values by a pass over one token."""
    kv, request = KVBlocks(1, 1), EngineRequest([0], Ends(), GREEDY, notify=lambda _: None)
    BlockPool(1, 1, 0).begin(request.sequence, [], announces=False)
    with torch.inference_mode():
        ModelRunner(network, kv).forward([Work(request, 1)])
    return kv.num_bytes


def kv_limits(
    network: Any,
    *,
    max_batch_size: int,
    max_seq_len: int | None,
    context_len: int,
    tokens_per_block: int,
    kv_cache_bytes: int | None,
    prefix_cache_bytes: int,
) -> KVLimits:
    """Compute how many blocks fit into the memory for keys and values, and the maximum length of a request.

    There are no more blocks than `max_batch_size` requests and their probes can fill. The other arguments are as in
    `HuggingFaceWorker`.

    Raises:
        ConfigError: Not even one block fits, or not even one request of the wanted length.
    """
    if kv_cache_bytes is not None:
        room = kv_cache_bytes
    elif network.device.type == "cuda":
        room = int(torch.cuda.mem_get_info(network.device)[0] * _SHARE_OF_FREE)
    else:
        room = DEFAULT_KV_BYTES
    block_bytes = max(1, token_bytes(network) * tokens_per_block)  # a model may have no keys and values
    num_fitting = room // block_bytes
    longest = num_fitting * tokens_per_block
    if (max_seq_len or 1) > longest:
        advice = f"set max_seq_len to at most {longest}" if longest >= 1 else "choose a smaller model"
        raise ConfigError(
            f"is {max_seq_len or context_len}, but kv_cache_bytes is {room}, which holds {num_fitting} blocks "
            f"of {tokens_per_block} tokens ({block_bytes} bytes each): {advice}, or raise kv_cache_bytes",
            "max_seq_len",
        )
    served = max_seq_len or min(context_len, longest)
    max_cached = prefix_cache_bytes // block_bytes
    num_useful = _HELD_PER_PLACE * max_batch_size * -(-served // tokens_per_block) + max_cached
    limited_by = f"kv_cache_bytes, {room}, holds no more" if served < (max_seq_len or context_len) else ""
    return KVLimits(min(num_fitting, num_useful), tokens_per_block, max_cached, served, limited_by)
