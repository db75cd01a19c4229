"""Keys and values of all sequences in the transformers engine: buffers of blocks, and how many fit into the memory."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from scaffolding_ext.errors import ConfigError

DEFAULT_KV_BYTES = 4 * 2**30  # if the device does not report its free memory
_SHARE_OF_FREE = 0.8  # of a CUDA device's free memory; the rest is for activations
_HELD_PER_PLACE = 2  # a chain and its probe


class LayerKV(NamedTuple):
    """One layer's keys and values, shape (blocks, heads, tokens per block, head size); the head sizes may differ."""

    keys: torch.Tensor
    values: torch.Tensor

    def gather(self, tables: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy the keys and values of some blocks: int64, shape (rows, blocks) to (rows, heads, places, size)."""
        keys, values = (
            buffer.index_select(0, tables.flatten()).unflatten(0, tables.shape).transpose(1, 2).flatten(2, 3)
            for buffer in (self.keys, self.values)
        )
        return keys, values


class KVBlocks:
    """Keys and values of every layer, in blocks; a layer's buffers are allocated on its first write.

    On a CPU a block takes memory only once it is written.
    """

    def __init__(self, num_blocks: int, tokens_per_block: int) -> None:
        self.num_blocks = num_blocks
        self.tokens_per_block = tokens_per_block
        self._layers: dict[int, LayerKV] = {}

    @property
    def buffers(self) -> list[torch.Tensor]:
        return [buffer for layer in self._layers.values() for buffer in (layer.keys, layer.values)]

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)

    def write(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor, blocks: torch.Tensor, offsets: torch.Tensor
    ) -> LayerKV:
        """Write one layer's new keys and values, shape (heads, tokens, head size); return all of that layer.

        Each token goes to an offset in a block, int64, shape (tokens,) both.
        """
        kv = self._layers.get(layer)
        if kv is None:
            new_keys, new_values = (  # allocate both before keeping either, because one may not fit
                _zeros((self.num_blocks, states.shape[0], self.tokens_per_block, states.shape[2]), states)
                for states in (keys, values)
            )
            kv = self._layers[layer] = LayerKV(new_keys, new_values)
        for buffer, states in ((kv.keys, keys), (kv.values, values)):
            buffer[blocks, :, offsets] = states.transpose(0, 1)
        return kv

    def clear(self, block: int) -> None:
        """Clear a block, so that its next holder sees none of its content."""
        for buffer in self.buffers:
            buffer[block] = 0


def _zeros(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Allocate zeros; on a CPU they take memory only once written, because most blocks are never used."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    num_bytes = like.element_size() * math.prod(shape)
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(like.dtype).view(shape)


class KVLimits(NamedTuple):
    """Capacity of the memory for keys and values."""

    num_blocks: int  # total
    tokens_per_block: int
    max_cached: int  # blocks that may stay as cache
    max_seq_len: int = 0  # maximum prompt and generated tokens of one request
    limited_by: str = ""  # reason for this maximum, if it is the memory


def kv_limits(
    token_bytes: int,
    device: torch.device,
    *,
    max_batch_size: int,
    max_seq_len: int | None,
    context_len: int,
    tokens_per_block: int,
    kv_cache_bytes: int | None,
    prefix_cache_bytes: int,
) -> KVLimits:
    """Compute how many blocks fit into the memory for keys and values, and the maximum length of a request.

    There are no more blocks than `max_batch_size` requests and their probes can fill. A token takes `token_bytes`; the
    other arguments are as in `HuggingFaceWorker`.

    Raises:
        ConfigError: Not even one block fits, or not even one request of the wanted length.
    """
    if kv_cache_bytes is not None:
        room = kv_cache_bytes
    elif device.type == "cuda":
        room = int(torch.cuda.mem_get_info(device)[0] * _SHARE_OF_FREE)
    else:
        room = DEFAULT_KV_BYTES
    block_bytes = max(1, token_bytes * tokens_per_block)  # a model may have no keys and values
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
