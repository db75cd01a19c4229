"""Attention through tables of blocks on an NVIDIA GPU, by FlashInfer's kernels if FlashInfer is installed."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch

from scaffolding_ext.workers.huggingface.kv_blocks import LayerKV

_WORKSPACE_BYTES = 128 * 2**20  # what FlashInfer recommends
_HEAD_SIZES = (64, 128, 256)
_DTYPES = (torch.float16, torch.bfloat16)
Wrappers = dict[tuple[Any, ...], Any]  # FlashInfer's, by how layers attend; one pass at a time may use them


@cache
def _is_installed() -> bool:
    return importlib.util.find_spec("flashinfer") is not None


def serves(queries: torch.Tensor, kv: LayerKV) -> bool:
    """Whether FlashInfer is there and can compute this attention: half precision on CUDA, and head sizes it knows."""
    return (
        queries.device.type == "cuda"
        and queries.dtype is kv.keys.dtype is kv.values.dtype
        and queries.dtype in _DTYPES
        and kv.keys.shape == kv.values.shape
        and queries.shape[2] in _HEAD_SIZES
        and _is_installed()
    )


class FlashInferPlans:
    """What FlashInfer must know about one forward pass, computed once for all layers that attend in the same way.

    Args:
        wrappers: The wrappers that earlier passes made; this pass adds its own.
        num_tokens: How many tokens each request computes.
        kv_lens: How many positions each request has after the pass.
        tables: The blocks of each request, shape (requests, blocks).
    """

    def __init__(self, wrappers: Wrappers, num_tokens: list[int], kv_lens: list[int], tables: torch.Tensor) -> None:
        self._wrappers = wrappers
        self._num_tokens = num_tokens
        self._kv_lens = kv_lens
        self._tables = tables
        self._planned: set[tuple[Any, ...]] = set()

    def attend(self, queries: torch.Tensor, kv: LayerKV, window: int | None, scale: float) -> torch.Tensor:
        """As `block_attention`: queries of shape (heads, tokens, head size) to (tokens, heads, head size)."""
        key = queries.shape[0], kv.keys.shape[1], queries.shape[2], window, scale
        if key not in self._wrappers:
            self._wrappers[key] = _wrapper(queries.device)
        wrapper = self._wrappers[key]
        if key not in self._planned:
            self._planned.add(key)
            self._plan(wrapper, queries, kv, window, scale)
        attended: torch.Tensor = wrapper.run(queries.transpose(0, 1).contiguous(), (kv.keys, kv.values))
        return attended

    def _plan(self, wrapper: Any, queries: torch.Tensor, kv: LayerKV, window: int | None, scale: float) -> None:
        _, num_kv_heads, block_len, size = kv.keys.shape
        kv_lens = torch.tensor(self._kv_lens, dtype=torch.int32)
        num_blocks = -(-kv_lens // block_len)
        is_held = torch.arange(self._tables.shape[1]) < num_blocks[:, None]
        wrapper.plan(
            _ends(torch.tensor(self._num_tokens, dtype=torch.int32)),
            _ends(num_blocks),
            self._tables[is_held.to(self._tables.device)].int(),
            kv_lens - (num_blocks - 1) * block_len,
            queries.shape[0],
            num_kv_heads,
            size,
            block_len,
            causal=True,
            sm_scale=scale,
            window_left=-1 if window is None else window - 1,
            q_data_type=queries.dtype,
        )


def _ends(lengths: torch.Tensor) -> torch.Tensor:
    """The index at which each stretch of these lengths begins, and the end of the last stretch; int32."""
    return torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _wrapper(device: torch.device) -> Any:
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    return BatchPrefillWithPagedKVCacheWrapper(workspace, kv_layout="HND")
