"""What a model and the memory allow: whether its attention can be served, and how many rows of KV fit."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.errors import ConfigError

DEFAULT_KV_BYTES = 4 * 2**30  # where the device does not tell its free memory
_SHARE_OF_FREE = 0.8  # of a CUDA device's free memory; the rest is for activations and stored prefixes


def check_attention(config: Any, max_seq_len: int, serves_windows: bool) -> None:
    """Refuse a model whose layers would not see what they were trained to see.

    Args:
        config: The text part of the model's config.
        max_seq_len: Tokens of a request at most.
        serves_windows: Whether attention to a sliding window shorter than a request can be computed.

    Raises:
        ConfigError: The attention window is shorter than a request, or there are layers of another kind.
    """
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", None) is False:
        window = None
    if window is not None and window < max_seq_len and not serves_windows:
        raise ConfigError(
            f"is {max_seq_len}, but the model attends to a sliding window of {window} tokens, which this "
            f"attn_implementation cannot serve: lower max_seq_len to the window, {window}",
            "max_seq_len",
        )
    served = {"full_attention"} if window is None else {"full_attention", "sliding_attention"}
    refused = set(getattr(config, "layer_types", None) or ()) - served
    if refused:
        raise ConfigError(
            f"has layers of type {', '.join(sorted(refused))}; this worker serves full_attention and "
            "sliding_attention: choose another model",
            "model",
        )


def row_bytes(config: Any, max_seq_len: int, element_size: int) -> int:
    """Memory of the keys and values of one row; 0 where the config does not tell.

    Args:
        config: The text part of the model's config.
        max_seq_len: Positions in a row; one more is allocated for padding.
        element_size: Bytes of a number.
    """
    num_layers, num_heads = getattr(config, "num_hidden_layers", None), getattr(config, "num_attention_heads", None)
    hidden_size = getattr(config, "hidden_size", None)
    if not (num_layers and num_heads and hidden_size):
        return 0
    num_kv_heads = getattr(config, "num_key_value_heads", None) or num_heads
    head_size = getattr(config, "head_dim", None) or hidden_size // num_heads
    return int((max_seq_len + 1) * 2 * num_layers * num_kv_heads * head_size * element_size)


def fitting_rows(network: Any, max_batch_size: int, max_seq_len: int, kv_cache_bytes: int | None) -> int:
    """How many rows fit into the memory for keys and values.

    Args:
        network: The model, on its device.
        max_batch_size: Rows wanted.
        max_seq_len: Positions in a row.
        kv_cache_bytes: The memory; None takes 4 GiB, or 80 % of what is free on a CUDA device.

    Raises:
        ConfigError: Not even one row fits.
    """
    import torch

    if kv_cache_bytes is not None:
        room = kv_cache_bytes
    elif network.device.type == "cuda":
        room = int(torch.cuda.mem_get_info(network.device)[0] * _SHARE_OF_FREE)
    else:
        room = DEFAULT_KV_BYTES
    size = row_bytes(network.config.get_text_config(), max_seq_len, network.dtype.itemsize)
    if size <= room:
        return min(max_batch_size, room // size) if size else max_batch_size
    longest = room * (max_seq_len + 1) // size - 1
    advice = f"lower max_seq_len to at most {longest}" if longest >= 1 else "choose a smaller model"
    raise ConfigError(
        f"is {max_seq_len}; the keys and values of one such request take {size} bytes, but kv_cache_bytes allows "
        f"{room}: {advice}, or raise kv_cache_bytes",
        "max_seq_len",
    )
