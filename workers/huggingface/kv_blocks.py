"""Keys and values of all sequences in the transformers engine: buffers of blocks with a fixed number of tokens."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch


class Slots(NamedTuple):
    """Destinations of the tokens of one forward pass: blocks and offsets in them, int64, shape (tokens,) each."""

    blocks: torch.Tensor
    offsets: torch.Tensor


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

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: Slots) -> LayerKV:
        """Write one layer's new keys and values, shape (heads, tokens, head size); return all of that layer."""
        kv = self._layers.get(layer)
        if kv is None:
            new_keys, new_values = (  # allocate both before keeping either, because one may not fit
                _zeros((self.num_blocks, states.shape[0], self.tokens_per_block, states.shape[2]), states)
                for states in (keys, values)
            )
            kv = self._layers[layer] = LayerKV(new_keys, new_values)
        for buffer, states in ((kv.keys, keys), (kv.values, values)):
            buffer[slots.blocks, :, slots.offsets] = states.transpose(0, 1)
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
