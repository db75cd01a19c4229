"""Keys and values of all sequences in the transformers engine: buffers of blocks with a fixed number of tokens."""

from __future__ import annotations

import math

import numpy as np
import torch


class Slots:
    """Where the tokens of one forward pass are written: blocks and offsets in them, int64, shape (tokens,) each."""

    def __init__(self, blocks: torch.Tensor, offsets: torch.Tensor) -> None:
        self.blocks = blocks
        self.offsets = offsets
        self._flat: dict[tuple[int, int], torch.Tensor] = {}

    def flat(self, num_heads: int, tokens_per_block: int) -> torch.Tensor:
        """Indices into a buffer seen as (blocks x heads x places, head size), heads outermost; every layer's alike."""
        key = num_heads, tokens_per_block
        if key not in self._flat:
            heads = torch.arange(num_heads, device=self.blocks.device)[:, None]
            self._flat[key] = ((self.blocks * num_heads + heads) * tokens_per_block + self.offsets).flatten()
        return self._flat[key]


class LayerKV:
    """One layer's keys and values. Padding is written to the last block, which is never read.

    They may have a narrower type than the computation.

    Attributes:
        keys: Shape (blocks, heads, tokens a block, head size).
        values: Shape (blocks, heads, tokens a block, head size); the size may differ from that of the keys.
    """

    __slots__ = ("keys", "values")

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys = keys
        self.values = values

    def gather(
        self, tables: torch.Tensor, kv_len: int, dtype: torch.dtype | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies of the first `kv_len` positions of some sequences.

        Args:
            tables: Their blocks, int64, shape (rows, blocks).
            kv_len: Number of positions to copy from each.
            dtype: Type of the copies; None takes the type in which they are kept.

        Returns:
            Keys and values, shape (rows, heads, positions, head size).
        """
        keys, values = (_gather(buffer, tables, kv_len) for buffer in (self.keys, self.values))
        return (keys, values) if dtype is None else (keys.to(dtype), values.to(dtype))


def _gather(buffer: torch.Tensor, tables: torch.Tensor, kv_len: int) -> torch.Tensor:
    num_rows, num_blocks = tables.shape
    blocks = buffer.index_select(0, tables.flatten()).unflatten(0, (num_rows, num_blocks))
    return blocks.transpose(1, 2).flatten(2, 3)[:, :, :kv_len]


class KVBlocks:
    """Keys and values of every layer, in blocks; a layer's buffers are allocated when it first writes.

    Beside the `num_blocks` that sequences can hold there is one for padding. On a CPU a block takes memory only once it
    is written. `dtype` is what keys and values are rounded to; None keeps them as they come.
    """

    def __init__(self, num_blocks: int, tokens_per_block: int, dtype: torch.dtype | None = None) -> None:
        self.num_blocks = num_blocks
        self.tokens_per_block = tokens_per_block
        self._dtype = dtype
        self._layers: dict[int, LayerKV] = {}

    @property
    def padding(self) -> int:
        return self.num_blocks

    @property
    def buffers(self) -> list[torch.Tensor]:
        return [buffer for layer in self._layers.values() for buffer in (layer.keys, layer.values)]

    @property
    def num_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self.buffers)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: Slots) -> LayerKV:
        """Write one layer's new keys and values, shape (heads, tokens, head size); returns all of that layer.

        The head size of the values may differ from that of the keys.
        """
        if self._dtype is not None:
            keys, values = keys.to(self._dtype), values.to(self._dtype)
        kv = self._layers.get(layer)
        if kv is None:
            new_keys, new_values = (  # both before either is kept: one of them may not fit into memory
                _zeros((self.num_blocks + 1, states.shape[0], self.tokens_per_block, states.shape[2]), states)
                for states in (keys, values)
            )
            kv = self._layers[layer] = LayerKV(new_keys, new_values)
        flat = slots.flat(keys.shape[0], self.tokens_per_block)
        for buffer, states in ((kv.keys, keys), (kv.values, values)):
            buffer.view(-1, buffer.shape[-1]).index_copy_(0, flat, states.reshape(-1, states.shape[-1]))
        return kv

    def copy(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first tokens of one block to another."""
        for buffer in self.buffers:
            buffer[target, :, :num_tokens] = buffer[source, :, :num_tokens]

    def clear(self, block: int) -> None:
        """Clear a block, so that its next holder sees nothing of its content."""
        for buffer in self.buffers:
            buffer[block] = 0


def _zeros(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Zeros. On a CPU they take memory only where they are written: most blocks are never used."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    num_bytes = like.element_size() * math.prod(shape)
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(like.dtype).view(shape)
