"""Keys and values of the requests that run in the transformers engine: one preallocated row a request."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch


class Slots:
    """Where the tokens of one forward pass are written: a row and a position each.

    Args:
        rows: int64, shape (tokens,).
        positions: int64, shape (tokens,).
    """

    def __init__(self, rows: torch.Tensor, positions: torch.Tensor) -> None:
        self.rows = rows
        self.positions = positions
        self._flat: dict[tuple[int, int], torch.Tensor] = {}

    def flat(self, num_heads: int, row_len: int) -> torch.Tensor:
        """Indices into a buffer seen as (rows x heads x positions, head size), heads outermost; every layer's alike."""
        key = num_heads, row_len
        if key not in self._flat:
            heads = torch.arange(num_heads, device=self.rows.device)[:, None]
            self._flat[key] = ((self.rows * num_heads + heads) * row_len + self.positions).flatten()
        return self._flat[key]


class KVRows:
    """Preallocated keys and values, one row a running request.

    A layer's buffers have the shape (rows, heads, positions, head size) and are allocated when it first writes.

    Args:
        num_rows: Requests that can run at once.
        capacity: Positions in a row; one more is allocated, which takes the writes of padding.
    """

    def __init__(self, num_rows: int, capacity: int) -> None:
        self.num_rows = num_rows
        self.capacity = capacity
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}

    @property
    def _buffers(self) -> tuple[torch.Tensor, ...]:
        return (*self._keys.values(), *self._values.values())

    @property
    def num_bytes(self) -> int:
        """Memory of all rows, as far as it is allocated."""
        return sum(buffer.nbytes for buffer in self._buffers)

    def clear(self, row: int) -> None:
        """Forget what a row holds, so that nothing of it reaches the next request there."""
        for buffer in self._buffers:
            buffer[row] = 0

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, slots: Slots) -> None:
        """Write one layer's new keys and values.

        Args:
            layer: Its index.
            keys: Shape (heads, tokens, head size).
            values: Shape (heads, tokens, head size); the size may differ from that of the keys.
            slots: Where each token goes.
        """
        if layer not in self._keys:
            new_keys, new_values = (  # both, before either is kept: one of them may not fit into the memory
                _zeros((self.num_rows, states.shape[0], self.capacity + 1, states.shape[2]), states)
                for states in (keys, values)
            )
            self._keys[layer], self._values[layer] = new_keys, new_values
        flat = slots.flat(keys.shape[0], self.capacity + 1)
        for buffer, states in ((self._keys[layer], keys), (self._values[layer], values)):
            buffer.view(-1, buffer.shape[-1]).index_copy_(0, flat, states.reshape(-1, states.shape[-1]))

    def read(self, layer: int, first_row: int, num_rows: int, kv_len: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Views of the first positions of consecutive rows: keys and values, (rows, heads, positions, head size)."""
        rows = slice(first_row, first_row + num_rows)
        return self._keys[layer][rows, :, :kv_len], self._values[layer][rows, :, :kv_len]

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first positions of one row to another."""
        for buffer in self._buffers:
            buffer[target, :, :num_tokens] = buffer[source, :, :num_tokens]

    def export(self, row: int, num_tokens: int) -> list[torch.Tensor]:
        """A copy of a row's first positions: keys of every layer, then values."""
        return [buffer[row, :, :num_tokens].clone() for buffer in self._buffers]

    def load(self, row: int, tensors: Sequence[torch.Tensor], num_tokens: int) -> None:
        """Copy the first exported positions into a row."""
        for buffer, tensor in zip(self._buffers, tensors, strict=True):
            buffer[row, :, :num_tokens] = tensor[:, :num_tokens]


def _zeros(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Zeros that take memory where they are written, if the device is the CPU: most rows are never full."""
    if like.device.type != "cpu":
        return like.new_zeros(shape)
    num_bytes = like.element_size() * math.prod(shape)
    return torch.from_numpy(np.zeros(num_bytes, np.uint8)).view(like.dtype).view(shape)
