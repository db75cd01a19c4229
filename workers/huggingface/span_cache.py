"""Cached keys and values of a span, for models whose own attention runs."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

from scaffolding_ext.workers.huggingface.attention import Span
from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks, Slots


class SpanCache(Cache):  # type: ignore[misc]
    """The keys and values of a span as the cache that a model's own attention expects."""

    def __init__(self, kv: KVBlocks, span: Span, slots: Slots) -> None:
        super().__init__(layers=[])
        self._kv = kv
        self._span = span
        self._slots = slots

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new keys and values, shape (rows, heads, tokens, head size); return all that is visible."""
        keys, values = (states.transpose(0, 1).flatten(1, 2) for states in (key_states, value_states))
        kv = self._kv.write(layer_idx, keys, values, self._slots)
        return kv.gather(self._span.tables, self._span.kv_len, key_states.dtype)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Number of positions that attention sees; models that compute positions themselves ask for it."""
        return self._span.kv_len
