"""Attention of decoding rows on a CPU, in C: a pass over each row's own keys and values, no longer than the row.

torch has no kernel for one token a row: what there is reads the rows of a batch up to the longest, and spends its time
on matrix products that are too small. The C file beside this one is built when the package is installed; where that
could not be done, torch computes the same.
"""

from __future__ import annotations

import torch

try:
    from scaffolding_ext.workers.huggingface import _decode_attention as kernel
except ImportError:  # there was no compiler at the installation
    kernel = None  # type: ignore[assignment]

_UNBOUNDED = 1 << 60


def serves(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether the kernel can compute this attention: float32 on the CPU, and one thread."""
    return (
        keys.device.type == "cpu"
        and {queries.dtype, keys.dtype, values.dtype} == {torch.float32}
        and keys.shape == values.shape
        and keys.stride() == values.stride()
        and queries.stride(2) == 1
        and torch.get_num_threads() == 1
        and kernel is not None
    )


def decode_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    positions: torch.Tensor,
    window: int | None,
    scale: float,
    output: torch.Tensor,
) -> None:
    """Attend from one token a row to the row's positions up to and with its own.

    Args:
        queries: float32, shape (heads, rows, head size); consecutive heads share keys and values.
        keys: Shape (rows, key-value heads, positions, head size).
        values: As the keys, with the same strides.
        positions: Of each row's token, int64, contiguous, shape (rows,) or (rows, 1).
        window: Positions that a token sees at most; None is all.
        scale: Factor on the scores.
        output: Contiguous, shape (rows, heads, head size); written.

    Raises:
        MemoryError: There is no room for the scores of one row.
    """
    num_heads, num_rows, size = queries.shape
    num_kv_heads = keys.shape[1]
    kernel.decode_attention(
        queries.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        output.data_ptr(),
        positions.data_ptr(),
        num_rows,
        num_kv_heads,
        num_heads // num_kv_heads,
        size,
        queries.stride(1),
        queries.stride(0),
        keys.stride(0),
        keys.stride(1),
        _UNBOUNDED if window is None else window,
        scale,
    )
