"""Attention over rows of cached keys and values, for all the tokens of a step in one flat sequence.

The tokens of every request in a step lie one behind the other, without padding between them, so that all of a model but
its attention works on them as on one text. Attention is computed span by span. transformers calls `attend` in the place
of its own attention where a model's `attn_implementation` is `ATTENTION`.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.workers.huggingface.decode_attention import decode_attention, serves
from scaffolding_ext.workers.huggingface.kv_cache import KVRows, Slots

ATTENTION = "scaffolding_ext_rows"


class Span:
    """Consecutive rows that compute equally many tokens, and attend to equally many positions.

    Args:
        first_row: The first of them.
        num_rows: How many they are.
        num_tokens: Tokens that each of them computes.
        kv_len: Positions that they see.
        positions: Those of their tokens, int64, shape (rows, tokens).
        dtype: Of the mask.
    """

    def __init__(
        self, first_row: int, num_rows: int, num_tokens: int, kv_len: int, positions: torch.Tensor, dtype: torch.dtype
    ) -> None:
        self.first_row = first_row
        self.num_rows = num_rows
        self.num_tokens = num_tokens
        self.kv_len = kv_len
        self.positions = positions
        self._dtype = dtype
        self._masks: dict[tuple[int | None, int], torch.Tensor] = {}

    def mask(self, window: int | None = None, num_groups: int = 1) -> torch.Tensor:
        """What is added to the scores: 0 where a token sees a position, else the lowest number.

        Args:
            window: Positions that a token sees at most, itself included; None is all before it.
            num_groups: Heads that share keys and values; their tokens lie one head behind the other.

        Returns:
            Shape (rows, 1, groups * tokens, positions); (rows, 1, 1, positions) for one token.
        """
        key = window, 1 if self.num_tokens == 1 else num_groups
        if key not in self._masks:
            places = torch.arange(self.kv_len, device=self.positions.device)
            own = self.positions[:, None, :, None]
            hidden = places > own
            if window is not None:
                hidden |= places <= own - window
            mask = torch.zeros(hidden.shape, dtype=self._dtype, device=hidden.device)
            mask.masked_fill_(hidden, torch.finfo(self._dtype).min)
            self._masks[key] = mask.repeat(1, 1, key[1], 1)
        return self._masks[key]


class Step(NamedTuple):
    """What attention must know of one forward pass.

    Attributes:
        kv: All keys and values.
        slots: Where those of the pass are written.
        spans: In the order of the tokens; behind the last span's tokens there may be padding.
        layers: Those that have attended.
    """

    kv: KVRows
    slots: Slots
    spans: list[Span]
    layers: set[int]


# What models pass on that does not change what is computed here.
_HARMLESS = {"dropout", "position_ids", "use_cache", "cache_position", "is_causal", "output_attentions"}
_HARMLESS |= {"output_hidden_states", "output_router_logits", "return_dict"}
current_step: ContextVar[Step] = ContextVar("current_step")


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
        module: The layer's attention; its `layer_idx` tells which it is.
        query: Shape (1, heads, tokens, head size).
        key: Shape (1, key-value heads, tokens, head size).
        value: As the keys.
        attention_mask: Must be None: spans have their own.
        scaling: Factor on the scores.
        sliding_window: Positions that a token sees at most.
        **kwargs: What else a model passes on; what would change the result is refused.

    Returns:
        The attention's output, shape (1, tokens, heads, head size), and no weights.

    Raises:
        ConfigError: The layer does more than this attention can.
    """
    kv, slots, spans, layers = current_step.get()
    layer = int(module.layer_idx)
    _check(module, layer in layers, attention_mask, kwargs)
    layers.add(layer)
    kv.write(layer, key[0], value[0], slots)
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    output = query.new_zeros(query.shape[2], query.shape[1], value.shape[3])
    start = 0
    for span in spans:
        stop = start + span.num_rows * span.num_tokens
        queries, target = query[0, :, start:stop], output[start:stop]
        keys, values = kv.read(layer, span.first_row, span.num_rows, span.kv_len)
        if span.num_tokens == 1 and serves(queries, keys, values):
            decode_attention(queries, keys, values, span.positions, sliding_window, scale, target)
        else:
            target.copy_(_attend_span(queries, keys, values, span, sliding_window, scale))
        start = stop
    return output[None], None


def _check(module: torch.nn.Module, again: bool, mask: torch.Tensor | None, options: dict[str, Any]) -> None:
    """Refuse a layer that does more than causal attention to its own keys and values.

    Raises:
        ConfigError: It does.
    """
    unknown = [name for name, value in options.items() if value is not None and name not in _HARMLESS]
    causal = options.get("is_causal") is not False and getattr(module, "is_causal", True)
    if unknown or again or mask is not None or not causal:
        what = ", ".join(unknown) or ("two passes" if again else "a mask of its own" if causal else "no causal order")
        raise ConfigError(
            f"the model's attention has {what}, which the default cannot compute: try 'eager', or another model",
            "attn_implementation",
        )


def _attend_span(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, span: Span, window: int | None, scale: float
) -> torch.Tensor:
    """torch's attention of a span: queries of shape (heads, tokens, head size) to (tokens, heads, head size)."""
    num_rows, num_tokens = span.num_rows, span.num_tokens
    num_heads, num_kv_heads = queries.shape[0], keys.shape[1]
    num_groups = num_heads // num_kv_heads
    grouped = queries.unflatten(1, (num_rows, num_tokens)).unflatten(0, (num_kv_heads, num_groups))
    attended = scaled_dot_product_attention(  # heads that share keys stand as tokens, so that keys are read once
        grouped.permute(2, 0, 1, 3, 4).flatten(2, 3),
        keys,
        values,
        attn_mask=span.mask(window, num_groups),
        scale=scale,
    )
    attended = attended.unflatten(2, (num_groups, num_tokens)).permute(0, 3, 1, 2, 4)
    return attended.reshape(num_rows * num_tokens, num_heads, -1)


def register() -> None:
    """Make `ATTENTION` known to transformers."""
    from transformers import AttentionInterface

    AttentionInterface.register(ATTENTION, attend)
