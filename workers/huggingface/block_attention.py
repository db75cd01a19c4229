"""Attention through tables of blocks on a CPU, in C: it reads only the keys and values that each token sees.

torch has no kernel for a few tokens of each sequence, and none for tables. Its kernels read every row of a batch up to
the length of the longest row, and spend their time on small matrix products. The C file beside this module is built
when the package is installed. If it could not be built, torch computes the same result.
"""

from __future__ import annotations

import functools
import warnings

import torch

from scaffolding_ext.workers.huggingface.kv_blocks import LayerKV

try:
    from scaffolding_ext.workers.huggingface import _block_attention as kernel
except ImportError:  # there was no compiler when the package was installed
    kernel = None  # type: ignore[assignment]

_UNBOUNDED = 1 << 60
_WIDEST = 512  # largest head size that the kernel can widen


@functools.cache
def warn_without_kernel() -> None:
    """Warn, once in a process, that attention on this CPU is slower than necessary."""
    if kernel is None:
        warnings.warn(
            "the installation did not build the C kernel for attention on a CPU, so torch computes attention, with "
            "the same results but slower: install a C compiler, then install the package again",
            stacklevel=3,
        )


def serves(queries: torch.Tensor, kv: LayerKV) -> bool:
    """Whether the kernel can compute this attention: on the CPU, keys of float32 or float16, and one thread."""
    return (
        kernel is not None
        and queries.device.type == "cpu"
        and queries.dtype is torch.float32
        and kv.keys.dtype is kv.values.dtype
        and (kv.keys.dtype is torch.float32 or (kv.keys.dtype is torch.float16 and kv.keys.shape[3] <= _WIDEST))
        and kv.keys.shape == kv.values.shape
        and queries.stride(2) == 1
        and torch.get_num_threads() == 1
    )


def block_attention(
    queries: torch.Tensor,
    kv: LayerKV,
    tables: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    window: int | None,
    scale: float,
    output: torch.Tensor,
    shared: torch.Tensor | None = None,
) -> None:
    """Attend from each token to its sequence's positions up to its own, its own included.

    Args:
        queries: float32, shape (heads, tokens, head size); consecutive heads share keys and values.
        kv: Keys and values in blocks, of the same shape and type: float32, or float16 that is widened when it is read.
        tables: The blocks of each sequence, int64, contiguous, shape (sequences, blocks).
        rows: For each token, the row of its sequence's table; int64, contiguous.
        positions: The position of each token, int64, contiguous.
        window: Most positions that a token sees; None: all positions.
        scale: Factor on the scores.
        output: Contiguous, shape (tokens, heads, head size); written.
        shared: For each token, how many positions it and the next token both see in the same whole blocks; int64,
            contiguous. The kernel reads these positions once for all tokens that share them; the results stay the same.
            None: tokens share nothing.

    Raises:
        MemoryError: There is not enough memory for the scores of one token.
    """
    num_heads, num_tokens, size = queries.shape
    _, num_kv_heads, block_len, _ = kv.keys.shape
    if shared is None or window is not None:  # a window begins elsewhere for each token
        shared = torch.zeros_like(positions)
    kernel.block_attention(
        queries.data_ptr(),
        kv.keys.data_ptr(),
        kv.values.data_ptr(),
        output.data_ptr(),
        positions.data_ptr(),
        rows.data_ptr(),
        tables.data_ptr(),
        shared.data_ptr(),
        num_tokens,
        num_kv_heads,
        num_heads // num_kv_heads,
        size,
        tables.shape[1],
        block_len,
        queries.stride(1),
        queries.stride(0),
        kv.keys.stride(0),
        kv.keys.stride(1),
        _UNBOUNDED if window is None else window,
        scale,
        kv.keys.dtype is torch.float16,
    )
