"""Finds out whether a model's files can be had, before anything is loaded and without a long wait for a hub."""

from __future__ import annotations

import json
import os
from typing import Any

from scaffolding_ext.errors import ConfigError

_HUB_SECONDS = 5.0  # for the one word that is asked of the hub
_NEITHER = "neither a folder here nor a model of the hub"
_REMEDY = "give a folder with config.json, weights and tokenizer.json, a hub name, or tinylm/NAME"


def how_to_load(folder: str, model: str, trust_remote_code: bool = False) -> dict[str, Any]:
    """Options for `from_pretrained`, with which it never asks on a terminal and never retries an absent hub.

    Args:
        folder: The model's folder, or its name on the hub.
        model: What the user calls it, for errors.
        trust_remote_code: Whether Python code among the model's files may be run.

    Raises:
        ConfigError: It is a folder without a model, or a name that is neither here nor to be had.
    """
    options = {"trust_remote_code": trust_remote_code}
    if not model.strip() or "\0" in model:
        raise ConfigError(f"is {model!r}; {_REMEDY}", "model")
    if folder.lower().endswith(".gguf"):
        raise ConfigError(
            f"is {_shown(model)}, a GGUF file. GGUF: serve it with llama-server (`pip install xllamacpp`) and take "
            "--base_url (docs/servers.md)",
            "model",
        )
    if os.path.isdir(folder):
        if not os.path.isfile(os.path.join(folder, "config.json")):
            raise ConfigError(f"is {model!r}, a folder without a model: it has no config.json; {_REMEDY}", "model")
        return options
    if os.path.lexists(folder) or folder.count("/") > 1 or folder.startswith((".", "/", "~")):
        raise ConfigError(f"is {_shown(model)}, {_NEITHER}: there is no such folder; {_REMEDY}", "model")
    return {**options, "local_files_only": _from_the_cache_alone(folder)}


def refuse_own_tokenizer(folder: str, model: str) -> None:
    """Refuse a folder whose tokenizer is Python code, since transformers would load another tokenizer in its place.

    Raises:
        ConfigError: The tokenizer's class is among the model's files, and transformers has none of that name.
    """
    import transformers

    try:
        with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError, RecursionError):  # transformers says what is wrong with it
        return
    name = str(config.get("tokenizer_class")) if isinstance(config, dict) else ""
    if name and config.get("auto_map") and not hasattr(transformers, name):
        raise ConfigError(
            f"is {model!r}, whose tokenizer {name!r} is Python code from the model's repository: read the code, and "
            "set trust_remote_code to true if it may run",
            "model",
        )


def _from_the_cache_alone(name: str) -> bool:
    """Whether a hub's model is loaded without asking the hub, since the hub cannot be reached."""
    try:
        from huggingface_hub import HfApi, try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
    except ImportError:  # then transformers is not there either, and says so
        return False
    is_here = False
    try:
        is_here = isinstance(try_to_load_from_cache(name, "config.json"), str)
        HfApi().model_info(name, timeout=_HUB_SECONDS)
    except HFValidationError as error:
        raise ConfigError(f"is {_shown(name)}, {_NEITHER}: the hub has no such names; {_REMEDY}", "model") from error
    except RepositoryNotFoundError as error:  # also of a gated model
        if not is_here:
            says = f"the hub does not give it (a gated model needs HF_TOKEN; {type(error).__name__})"
            raise ConfigError(f"is {name!r}, {_NEITHER}: {says}; {_REMEDY}", "model") from error
    except Exception as error:  # of any type: whatever library the hub's client stands on
        if not is_here:
            raise ConfigError(
                f"is {name!r}, {_NEITHER} that was downloaded before, and the hub cannot be asked "
                f"({type(error).__name__}: {error}); {_REMEDY}",
                "model",
            ) from error
        return True
    return False


def _shown(name: str) -> str:
    return repr(name) if len(name) <= 100 else f"{name[:100]!r}... ({len(name)} characters)"
