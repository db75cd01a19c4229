"""Attention over cached keys and values in blocks, for all tokens of a step in one flat sequence.

The tokens of all requests in a step form one sequence without padding. All parts of a model except attention treat them
as one text; attention reads each request's blocks through a table. transformers calls `attend` instead of its own
attention if a model's `attn_implementation` is `ATTENTION`.

On one CPU thread a kernel in C computes the requests with few tokens in the step. For the embedded models it is 5.9
times as fast as torch, whose kernels take no tables and spend their time on small matrix products. On a real model of
160M parameters it saves 1 to 10 %. It is built when the package is installed; without it, torch computes the same.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks, LayerKV

kernel: Callable[[int, float], None] | None
try:
    from scaffolding_ext.workers.huggingface import _block_kernel

    kernel = _block_kernel.attend
except ImportError:  # there was no compiler at installation
    kernel = None

ATTENTION = "scaffolding_ext_blocks"
_UNBOUNDED = 1 << 60


class Span:
    """Requests of a step that each compute the same number of tokens and have similar lengths.

    Their tokens start at `start` of the step and have these `positions`, int64, shape (rows, tokens). Their blocks,
    `tables` of shape (rows, blocks), have `kv_len` places; those after a row's own tokens are masked.
    """

    def __init__(
        self, start: int, tables: torch.Tensor, positions: torch.Tensor, kv_len: int, dtype: torch.dtype
    ) -> None:
        self.num_rows, self.num_tokens = positions.shape
        self.start, self.stop, self.tables = start, start + positions.numel(), tables
        self._positions, self._kv_len, self._dtype = positions, kv_len, dtype
        self._masks: dict[tuple[int | None, int], torch.Tensor] = {}

    def mask(self, window: int | None, num_groups: int) -> torch.Tensor:
        """Return the mask added to the scores: 0 if a token sees a position, else the lowest number.

        A token sees at most `window` positions, including itself; None: all before it. Tokens are ordered by head:
        shape (rows, 1, groups * tokens, positions), or (rows, 1, 1, positions) for one token.
        """
        key = window, 1 if self.num_tokens == 1 else num_groups
        if key not in self._masks:
            places = torch.arange(self._kv_len, device=self._positions.device)
            own = self._positions[:, None, :, None]
            hidden = places > own
            if window is not None:
                hidden |= places <= own - window
            mask = torch.zeros(hidden.shape, dtype=self._dtype, device=hidden.device)
            mask.masked_fill_(hidden, torch.finfo(self._dtype).min)
            self._masks[key] = mask.repeat(1, 1, key[1], 1)
        return self._masks[key]


class AttentionMetadata(NamedTuple):
    """The tokens of one forward pass, as attention sees them."""

    kv: KVBlocks
    blocks: torch.Tensor  # for each token, the block that takes its keys and values; int64, shape (tokens,)
    offsets: torch.Tensor  # for each token, its place in that block; int64, shape (tokens,)
    tables: torch.Tensor  # the blocks of each request, int64, shape (requests, blocks)
    rows: torch.Tensor  # for each token, the row of its request's table; int64, shape (tokens,)
    positions: torch.Tensor  # the position of each token, int64, shape (tokens,)
    # tokens at the beginning that belong to requests with few tokens in the pass; the kernel computes these
    num_few: int
    spans: list[Span]  # all requests, in the order of the tokens
    layers: set[int]  # the layers whose attention has run


# Arguments of models that do not change the result here.
_HARMLESS = {"dropout", "position_ids", "use_cache", "cache_position", "is_causal", "output_attentions"}
_HARMLESS |= {"output_hidden_states", "output_router_logits", "return_dict"}
current_step: ContextVar[AttentionMetadata] = ContextVar("current_step")


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Write a layer's new keys and values, and attend to the cached ones; has the signature that transformers calls.

    Args:
        module: The layer's attention; its `layer_idx` identifies it.
        query: Shape (1, heads, tokens, head size); `key` and `value` likewise, with fewer heads.
        attention_mask: Must be None, because spans have their own masks.
        sliding_window: Maximum positions that a token sees.

    Returns:
        Shape (1, tokens, heads, head size), and no weights.

    Raises:
        ConfigError: The layer does more than causal attention.
    """
    step = current_step.get()
    layer = int(module.layer_idx)
    _check(module, layer in step.layers, attention_mask, kwargs)
    step.layers.add(layer)
    kv = step.kv.write(layer, key[0], value[0], step.blocks, step.offsets)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    output = query.new_empty(query.shape[2], query.shape[1], value.shape[3])
    done = 0
    if step.num_few and kernel_serves(query[0], kv):
        done = step.num_few
        run_kernel(query[0, :, :done], kv, step.tables, step.rows, step.positions, sliding_window, scale, output[:done])
    for span in step.spans:
        if span.start >= done:
            queries = query[0, :, span.start : span.stop]
            output[span.start : span.stop] = _attend_span(queries, kv, span, sliding_window, scale)
    return output[None], None


def _check(module: torch.nn.Module, again: bool, mask: torch.Tensor | None, options: dict[str, Any]) -> None:
    """Refuse a layer that does more than causal attention to its own keys and values."""
    unknown = [name for name, value in options.items() if value is not None and name not in _HARMLESS]
    causal = options.get("is_causal") is not False and getattr(module, "is_causal", True)
    if unknown or again or mask is not None or not causal:
        what = ", ".join(unknown)
        if not unknown:
            what = "two passes" if again else "its own mask" if causal else "attention that is not causal"
        raise ConfigError(
            f"is a model that uses {what}, which the attention of this worker cannot compute: choose another model",
            "model",
        )


def _attend_span(queries: torch.Tensor, kv: LayerKV, span: Span, window: int | None, scale: float) -> torch.Tensor:
    """torch's attention of a span: queries of shape (heads, tokens, head size) to (tokens, heads, head size)."""
    num_heads, num_kv_heads = queries.shape[0], kv.keys.shape[1]
    num_groups = num_heads // num_kv_heads
    grouped = queries.unflatten(1, (span.num_rows, span.num_tokens)).unflatten(0, (num_kv_heads, num_groups))
    by_row = grouped.permute(2, 0, 1, 3, 4).flatten(2, 3)  # heads with shared keys count as tokens: keys are read once
    keys, values = kv.gather(span.tables)
    mask = span.mask(window, num_groups)
    attended = scaled_dot_product_attention(by_row, keys, values, attn_mask=mask, scale=scale)
    attended = attended.unflatten(2, (num_groups, span.num_tokens)).permute(0, 3, 1, 2, 4)
    return attended.reshape(span.num_rows * span.num_tokens, num_heads, -1)


def kernel_serves(queries: torch.Tensor, kv: LayerKV) -> bool:
    """Return True if the kernel can compute this attention: in float32, on one thread of a CPU."""
    return (
        kernel is not None
        and queries.device.type == "cpu"
        and queries.dtype is kv.keys.dtype is kv.values.dtype is torch.float32
        and kv.keys.shape == kv.values.shape
        and queries.stride(2) == 1
        and torch.get_num_threads() == 1
    )


def run_kernel(
    queries: torch.Tensor,
    kv: LayerKV,
    tables: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    window: int | None,
    scale: float,
    output: torch.Tensor,
) -> None:
    """Attend with the kernel from each token to its sequence's positions up to and including its own.

    Args:
        queries: Shape (heads, tokens, head size); consecutive heads share keys and values.
        kv: Keys and values in blocks, of the same shape.
        tables: As in `AttentionMetadata`, like `rows` and `positions`; contiguous.
        window: Maximum positions that a token sees; None: all positions.
        output: Contiguous, shape (tokens, heads, head size); written.
    """
    num_heads, num_tokens, size = queries.shape
    _, num_kv_heads, block_len, _ = kv.keys.shape
    tensors = queries, kv.keys, kv.values, output, positions, rows, tables
    sizes = num_tokens, num_kv_heads, num_heads // num_kv_heads, size, tables.shape[1], block_len
    strides = queries.stride(1), queries.stride(0), kv.keys.stride(0), kv.keys.stride(1)
    seen = _UNBOUNDED if window is None else window
    call = array("q", [*[tensor.data_ptr() for tensor in tensors], *sizes, *strides, seen])
    kernel(call.buffer_info()[0], scale)  # type: ignore[misc]  # `kernel_serves` has been asked


AttentionInterface.register(ATTENTION, attend)
