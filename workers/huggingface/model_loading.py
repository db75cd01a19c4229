"""Loads a causal LM with its tokenizer, and turns errors of either into errors of the worker's arguments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError, MissingDependencyError, ScaffoldingExtError
from scaffolding_ext.prompts.model_files import how_to_load
from scaffolding_ext.prompts.prompting import load_tokenizer, model_folder

_DTYPES = ("float32", "bfloat16", "float16")
_NARROWER = {"kv_cache_dtype": ("float16",), "weight_dtype": ("bfloat16", "int8")}  # than float32, on a CPU
_LEAST = {
    **dict.fromkeys(("threads", "max_batch_size", "max_seq_len", "prefill_chunk", "kv_cache_bytes"), 1),
    **dict.fromkeys(("prefix_cache_bytes", "seed"), 0),
    "tokens_per_block": 16,
}  # of the arguments that are whole numbers
_MOST = {"threads": max(256, os.cpu_count() or 1), "max_batch_size": 65_536}  # no machine has more


class LoadedModel(NamedTuple):
    """A model that can be run.

    Attributes:
        network: The causal LM, on its device, in evaluation mode.
        tokenizer: The Rust backend of the tokenizer.
        chat_template: How its prompts are rendered; None where it has no template.
        end_ids: Token ids that end a text.
        attends_to_blocks: Whether its attention is this package's own.
    """

    network: Any
    tokenizer: Any
    chat_template: str | None
    end_ids: frozenset[int]
    attends_to_blocks: bool


def check_arguments(given: Mapping[str, Any]) -> None:
    """Check arguments of `HuggingFaceWorker`, as far as this is possible without loading the model.

    Raises:
        ConfigError: An argument is unusable; `key` names it.
    """
    for key, least in _LEAST.items():
        if given.get(key) is not None:
            require.whole(key, given[key], least, _MOST.get(key))
    block_len = given.get("tokens_per_block") or 1
    if block_len & (block_len - 1):
        raise ConfigError(f"is {block_len}; it must be a power of two, such as 32", "tokens_per_block")
    if "eviction_policy" in given:
        require.one_of("eviction_policy", given["eviction_policy"], ("lru", "branch_score"))
    if "dtype" in given:
        require.one_of("dtype", given["dtype"], _DTYPES)
    if given.get("probes_sharing") and not given.get("enable_block_reuse", True):
        raise ConfigError(
            "is true, but enable_block_reuse is false, so that no blocks are shared: set one of the two",
            "probes_sharing",
        )
    device = given.get("device", "cpu")
    if device != "cpu":
        _check_kind(device)
    for key in _NARROWER:
        if given.get(key) is not None:
            _check_narrower(key, given[key], given.get("dtype", "float32"), device)
    if "model" in given:
        model = given["model"]
        if not isinstance(model, str):
            raise ConfigError(
                f"is {model!r}; it must be a string: a folder, a name on the hub, or tinylm/NAME", "model"
            )
        with _argument("model"):
            how_to_load(model_folder(model), model, bool(given.get("trust_remote_code")))


def _check_narrower(key: str, value: Any, dtype: Any, device: Any) -> None:
    """Refuse a type of keys, values or weights that cannot be computed with."""
    if value == dtype:
        return
    require.one_of(key, value, (dtype, *_NARROWER[key]))
    if dtype != "float32":
        raise ConfigError(
            f"is {value!r}, which needs dtype 'float32', and dtype is {dtype!r}: change one of the two", key
        )
    if device != "cpu":
        raise ConfigError(
            f"is {value!r}, which needs device 'cpu', and device is {device!r}: leave it out, and set dtype", key
        )


def _check_kind(device: Any) -> None:
    """Refuse a name that is no device of torch."""
    import torch

    try:
        if not isinstance(device, str) or torch.device(device).type == "meta":
            raise RuntimeError("no device of this name can compute")
    except RuntimeError as error:
        raise ConfigError(
            f"is {device!r}, and torch has no such device ({error}): set 'cpu' or 'cuda'", "device"
        ) from error


def load_model(
    model: str, dtype: str, device: str, attn_implementation: str | None, trust_remote_code: bool = False
) -> LoadedModel:
    """Load a model.

    Raises:
        MissingDependencyError: torch or transformers is not installed.
        ConfigError: There is no such model, its weights do not fit it, or there is no such device.
    """
    if attn_implementation is None and model.startswith("tinylm/"):
        return _load_embedded(model, dtype, device)
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise MissingDependencyError("torch with transformers", "hf") from error
    from scaffolding_ext.workers.huggingface.attention import ATTENTION, register

    _check_device(device)
    chosen = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    with _no_progress_bars(), _model_errors(model):
        folder = model_folder(model)
        tokenizer = load_tokenizer(model, trust_remote_code)
        options = how_to_load(folder, model, trust_remote_code)
        network, report = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), output_loading_info=True, **chosen, **options
        )
        _check_weights(model, report)
    network.to(device).eval()
    _check_finite(model, network)
    attends_to_blocks = attn_implementation is None and network._supports_attention_backend
    if attends_to_blocks:
        register()
        network.set_attn_implementation(ATTENTION)
        attends_to_blocks = network.config.get_text_config()._attn_implementation == ATTENTION
    ends = _end_ids(network, tokenizer)
    return LoadedModel(network, tokenizer.backend_tokenizer, tokenizer.chat_template, ends, attends_to_blocks)


def _load_embedded(model: str, dtype: str, device: str) -> LoadedModel:
    """Load an embedded model without transformers: importing transformers takes longer than a short run."""
    try:
        import torch

        from scaffolding_ext.tinylm.network import Network
    except ImportError as error:
        raise MissingDependencyError("torch with transformers", "hf") from error
    from scaffolding_ext.workers.huggingface.attention import ATTENTION, attend

    _check_device(device)
    with _argument("model"):
        folder = model_folder(model)
        tokenizer = load_tokenizer(model)
    network = Network(folder, getattr(torch, dtype), device, attend, ATTENTION)
    _check_finite(model, network)
    ends = _end_ids(network, tokenizer)
    return LoadedModel(network, tokenizer.backend_tokenizer, tokenizer.chat_template, ends, attends_to_blocks=True)


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError, TypeError) as error:  # torch raises a different one for each reason
        raise ConfigError(
            f"is {device!r}, which torch {torch.__version__} cannot use on this machine: "
            f"{str(error).partition(chr(10))[0]}; set 'cpu', or install a torch and a driver for that device",
            "device",
        ) from error


def _check_weights(model: str, report: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that lacks weights: transformers puts random numbers in their place."""
    missing = sorted(report["missing_keys"])
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ConfigError(
            f"is {model!r}, whose checkpoint lacks the weights {', '.join(missing[:3])}{more}, and transformers would "
            "set them at random: get the whole checkpoint, of the architecture that its config.json names",
            "model",
        )


def _check_finite(model: str, network: Any) -> None:
    """Refuse weights that are not numbers: every text would be noise, or the run would fail later."""
    import torch

    for name, weights in network.named_parameters():
        if weights.numel() and not torch.isfinite(torch.stack(torch.aminmax(weights.detach()))).all():
            raise ConfigError(
                f"is {model!r}, whose weights {name} hold NaN or infinite numbers: download the checkpoint again, or "
                "set dtype to 'float32' if the numbers are too large for the present dtype",
                "model",
            )


def check_attention(config: Any, max_seq_len: int, serves_windows: bool) -> None:
    """Refuse a model whose layers would see other positions than in training.

    Args:
        config: The text part of the model's config.
        max_seq_len: Most tokens of a request.
        serves_windows: Whether attention to a sliding window shorter than a request can be computed.

    Raises:
        ConfigError: The attention window is shorter than a request, or there are layers of another kind.
    """
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", None) is False:
        window = None
    if "local" in str(getattr(config, "attention_types", "")):  # GPT-Neo's name for it
        window = config.window_size
    _check_positions(config, max_seq_len)
    if window is not None and window < max_seq_len and not serves_windows:
        raise ConfigError(
            f"is {max_seq_len}, but the model attends to a sliding window of {window} tokens, and this "
            f"attn_implementation has no such window: set max_seq_len to at most {window}, or leave "
            "attn_implementation out",
            "max_seq_len",
        )
    served = {"full_attention"} if window is None else {"full_attention", "sliding_attention"}
    refused = set(getattr(config, "layer_types", None) or ()) - served
    if refused:
        raise ConfigError(
            f"has layers of type {', '.join(sorted(refused))}, and this worker computes only "
            f"{' and '.join(sorted(served))}: choose another model",
            "model",
        )


def _check_positions(config: Any, max_seq_len: int) -> None:
    """Refuse a model whose positions depend on the longest request in a pass."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    original = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
    if "longrope" in (rope.get("rope_type"), rope.get("type")) and (original is None or max_seq_len > original):
        raise ConfigError(
            f"is {max_seq_len}, but the model (longrope) numbers the positions of requests of more than {original} "
            "tokens in another way than those of shorter ones, and a pass computes both: set max_seq_len to at most "
            f"{original}",
            "max_seq_len",
        )


@contextmanager
def _argument(key: str) -> Iterator[None]:
    """Name the argument in an error that names none."""
    try:
        yield
    except ConfigError as error:
        raise type(error)(error.message, error.key or key) from error


@contextmanager
def _model_errors(model: str) -> Iterator[None]:
    """Turn an error of transformers about a model that it cannot load into an error of the argument."""
    try:
        with _argument("model"):
            yield
    except ScaffoldingExtError:
        raise
    except Exception as error:  # of any type: transformers and its libraries raise many
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        if "attn_implementation" in str(error):
            raise ConfigError(
                f"cannot be used with the model {model!r} ({error}): leave it out", "attn_implementation"
            ) from error
        if "trust_remote_code" in str(error):
            raise ConfigError(
                f"is {model!r}, and this model needs Python code from its own repository: read the code, and set "
                "trust_remote_code to true if it may run",
                "model",
            ) from error
        if "size mismatch" in str(error) or "ignore_mismatched_sizes" in str(error):
            reason = "its weights have other sizes than its config.json says"
        elif "SafetensorError" in reason:
            reason = f"its weights cannot be read ({reason}); the download may have been cut off"
        what = (
            "a folder without a model"
            if Path(model_folder(model)).is_dir()
            else "a model on the hub that cannot be loaded"
        )
        raise ConfigError(
            f"is {model!r}, {what}: {reason}; give a folder with config.json, weights and tokenizer.json, a name on "
            "the hub, or tinylm/NAME",
            "model",
        ) from error


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing its own progress bars in the caller's terminal."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _end_ids(network: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a text, from the generation config and the tokenizer."""
    configured = network.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured, tokenizer.eos_token_id]
    vocab_size = network.get_input_embeddings().weight.shape[0]
    return frozenset(token for token in ids if token is not None and token < vocab_size)
