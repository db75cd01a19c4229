"""Tokenizers of models by name: a folder, a hub name, or a model that ships with a package."""

from __future__ import annotations

import functools
import logging
import os
import pkgutil
from typing import TYPE_CHECKING

from scaffolding_ext.errors import ConfigError, MissingDependencyError
from scaffolding_ext.prompts.model_files import how_to_load, refuse_own_tokenizer, show_marks

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

_log = logging.getLogger(__name__)
# Functions that return the folder of a model `COLLECTION/NAME`. Models of a collection have the family of that name.
COLLECTIONS = {"tinylm": "scaffolding_ext.tinylm.embedded:model_folder"}


def model_folder(model: str) -> str:
    """Resolve `tinylm/NAME` to the folder of the shipped weights; other names pass through."""
    collection = collection_of(model)
    return model if collection is None else str(pkgutil.resolve_name(COLLECTIONS[collection])(model))


def collection_of(model: str) -> str | None:
    name, slash, _ = model.partition("/")
    return name if slash and name in COLLECTIONS else None


@functools.lru_cache(maxsize=8)
def load_tokenizer(model: str, trust_remote_code: bool = False) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a model folder, hub name or `tinylm/NAME`; one object per name and process."""
    folder = model_folder(model)
    options = how_to_load(folder, model, trust_remote_code)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError("transformers", "hf") from error
    if not trust_remote_code:
        refuse_own_tokenizer(folder, model)
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    if not tokenizer.is_fast:
        raise ConfigError(
            f"the tokenizer of {model!r} has no fast (Rust) version, which this package needs: convert it to a "
            "tokenizer.json"
        )
    if tokenizer.chat_template is not None:
        show_marks(tokenizer)
    return tokenizer


def may_have_tokenizer(model: str) -> bool:
    """True if a server's model name may also name a tokenizer: `tinylm/NAME`, a folder, or a hub name."""
    return os.path.isdir(model_folder(model)) or (model.count("/") == 1 and not model.lower().endswith(".gguf"))


def has_tokenizer(model: str) -> bool:
    """True if the tokenizer of this name can be loaded; a hub name may take seconds."""
    try:
        return may_have_tokenizer(model) and load_tokenizer(model) is not None
    except Exception as error:  # transformers raises many types for a model it cannot load
        _log.info("the tokenizer of %s cannot be loaded: %s", model, error)
        return False
