"""Loads a causal LM with its tokenizer, and says in the worker's terms what is wrong with either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.errors import ConfigError, MissingDependencyError, UnknownNameError
from scaffolding_ext.prompting import load_tokenizer, model_folder

_DTYPES = ("float32", "bfloat16", "float16")


class LoadedModel(NamedTuple):
    """A model that can be run.

    Attributes:
        network: The causal LM, on its device, in evaluation mode.
        tokenizer: The tokenizer's Rust backend.
        chat_template: How its prompts are rendered; None where it has no template.
        end_ids: Token ids that end a text.
        attends_to_rows: Whether its attention is this package's own.
    """

    network: Any
    tokenizer: Any
    chat_template: str | None
    end_ids: frozenset[int]
    attends_to_rows: bool


def load_model(model: str, dtype: str, device: str, attn_implementation: str | None) -> LoadedModel:
    """Load a model.

    Args:
        model: A folder, a hub name, or `tinylm/NAME`.
        dtype: `"float32"`, `"bfloat16"` or `"float16"`.
        device: A torch device.
        attn_implementation: As transformers names it; None takes this package's own where the model allows it.

    Raises:
        MissingDependencyError: torch or transformers is not installed.
        ConfigError: There is no such model, or no such device.
    """
    if not isinstance(model, str):
        raise ConfigError(f"is {model!r}; it must be a string: a folder, a hub name or tinylm/NAME", "model")
    if dtype not in _DTYPES:
        raise ConfigError(f"is {dtype!r}; choose {', '.join(_DTYPES[:-1])} or {_DTYPES[-1]}", "dtype")
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise MissingDependencyError("torch with transformers", "hf") from error
    from scaffolding_ext.workers.huggingface.attention import ATTENTION, register

    _check_device(device)
    chosen = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    with _no_progress_bars(), _model_errors(model):
        tokenizer = load_tokenizer(model)
        network = AutoModelForCausalLM.from_pretrained(model_folder(model), dtype=getattr(torch, dtype), **chosen)
    network.to(device).eval()
    attends_to_rows = attn_implementation is None and network._supports_attention_backend
    if attends_to_rows:
        register()
        network.set_attn_implementation(ATTENTION)
        attends_to_rows = network.config.get_text_config()._attn_implementation == ATTENTION
    ends = _end_ids(network, tokenizer)
    return LoadedModel(network, tokenizer.backend_tokenizer, tokenizer.chat_template, ends, attends_to_rows)


def _check_device(device: str) -> None:
    import torch

    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError, TypeError) as error:  # torch has one for each reason
        raise ConfigError(
            f"is {device!r}, which torch {torch.__version__} cannot use on this machine: "
            f"{str(error).partition(chr(10))[0]}; take 'cpu', or install a torch and a driver for that device",
            "device",
        ) from error


@contextmanager
def _model_errors(model: str) -> Iterator[None]:
    """Turn what transformers raises about a model that is not there into an error of the argument."""
    try:
        yield
    except UnknownNameError as error:
        raise UnknownNameError(error.message, "model") from error
    except ConfigError:
        raise
    except (OSError, ValueError) as error:
        if "attn_implementation" in str(error):
            raise ConfigError(f"does not suit the model {model!r}: {error}", "attn_implementation") from error
        what = "a folder that is no model" if Path(model).is_dir() else "neither a folder here nor a model of the hub"
        raise ConfigError(
            f"is {model!r}, {what}: {str(error).partition(chr(10))[0]}; give a folder with config.json, weights and "
            "tokenizer.json, a hub name, or tinylm/NAME",
            "model",
        ) from error


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing bars of its own into the caller's terminal."""
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
