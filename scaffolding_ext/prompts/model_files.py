"""Facts from a model's files before it is loaded: availability and prompt family."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.answers.reading import Marks, marks_in
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.chat_template import ChatTemplate, Derived, declared_marks, derived_marks, pairs_in
from scaffolding_ext.prompts.encoding import hidden_in, with_visible
from scaffolding_ext.prompts.families import FAMILIES, GAP, UNTHINKING_FAMILY, PromptFamily

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedTokenizerFast


_HUB_SECONDS = 5.0  # time limit of the one query to the hub
_NEITHER = "neither a folder here nor a model of the hub"
_REMEDY = "give a folder with config.json, weights and tokenizer.json, a hub name, or tinylm/NAME"


def how_to_load(folder: str, model: str, trust_remote_code: bool = False) -> dict[str, Any]:
    """Options for `from_pretrained` that never prompt on a terminal and never retry an unreachable hub.

    Raises:
        ConfigError: The folder holds no model, or the name is neither local nor available.
    """
    options = {"trust_remote_code": trust_remote_code}
    if not model.strip() or "\0" in model:
        raise ConfigError(f"is {model!r}; {_REMEDY}", "model")
    if folder.lower().endswith(".gguf"):
        raise ConfigError(
            f"is {_shown(model)}, a GGUF file: serve it with llama-server (`pip install xllamacpp`) and use "
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
    """Refuse a folder whose tokenizer is Python code, since transformers would silently load another tokenizer."""
    import transformers

    try:
        with open(os.path.join(folder, "tokenizer_config.json"), encoding="utf-8") as file:
            config = json.load(file)
    except (OSError, ValueError, RecursionError):  # transformers reports the error
        return
    name = str(config.get("tokenizer_class")) if isinstance(config, dict) else ""
    if name and config.get("auto_map") and not hasattr(transformers, name):
        raise ConfigError(
            f"is {model!r}, whose tokenizer {name!r} is Python code from the model's repository: read the code, and "
            "set trust_remote_code to true if it may run",
            "model",
        )


def _from_the_cache_alone(name: str) -> bool:
    """True if a hub model is loaded from the cache only, because the hub cannot be reached."""
    try:
        from huggingface_hub import HfApi, try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError
    except ImportError:  # transformers is missing, too, and reports it
        return False
    is_here = False
    try:
        is_here = isinstance(try_to_load_from_cache(name, "config.json"), str)
        HfApi().model_info(name, timeout=_HUB_SECONDS)
    except HFValidationError as error:
        raise ConfigError(f"is {_shown(name)}, {_NEITHER}: the hub has no such names; {_REMEDY}", "model") from error
    except RepositoryNotFoundError as error:  # also raised for a gated model
        if not is_here:
            says = f"the hub does not give it (a gated model needs HF_TOKEN; {type(error).__name__})"
            raise ConfigError(f"is {name!r}, {_NEITHER}: {says}; {_REMEDY}", "model") from error
    except Exception as error:  # any error of the hub client's libraries
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


class FamilyChoice(NamedTuple):
    """A prompt family and the reason for it.

    Attributes:
        doubt: Reason why it may be another; empty if there is none.
    """

    name: str
    reason: str
    is_guess: bool = True
    doubt: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


# Model types in config.json with their own marks.
_BY_TYPE = {"gpt_oss": "gpt_oss", "GptOssForCausalLM": "gpt_oss"}
_SILENT = ("minimax-m1", "mimo-vl", "magistral-small-2506")  # think, though their templates show nothing of it
_BY_MARKS = {each.marks: name for name, each in FAMILIES.items() if isinstance(each, PromptFamily) and each.thinks}


def chosen_family(folder: str, tokenizer: PreTrainedTokenizerFast) -> FamilyChoice:
    """Choose the family by `model_type` and `architectures` of config.json, else by the marks of the chat template.

    A template without marks belongs to a model that does not think, whatever its vocabulary (Qwen3-Instruct-2507 is
    one). Without a template, a model thinks if its vocabulary has the marks of a known family.
    """
    config = config_of(folder)
    for key in ("model_type", "architectures"):
        for said in _listed(config.get(key)):
            if said in _BY_TYPE:
                return FamilyChoice(_BY_TYPE[said], f"config.json has {key} {said}")
    vocabulary = tokenizer.get_vocab()
    known = next((marks for marks in _BY_MARKS if marks.think_close in vocabulary), None)
    if tokenizer.chat_template is None:
        if known is None:
            return FamilyChoice(
                UNTHINKING_FAMILY, "there is no chat template, and the vocabulary has no marks of thinking"
            )
        reason = f"there is no chat template, and the vocabulary has {known.think_close}"
        return FamilyChoice(_BY_MARKS[known], reason)
    found = marks_of(tokenizer)
    named = next((name for name in _SILENT if name in Path(folder).name.lower()), None)
    if found is None and named is not None:
        return FamilyChoice(_BY_MARKS[Marks()], f"a model {named} thinks", doubt="it is known only by its name")
    if found is None:
        doubt = "" if known is None else f"the vocabulary has {known.think_close}, which the chat template never writes"
        return FamilyChoice(UNTHINKING_FAMILY, "the chat template shows no thinking", doubt=doubt)
    return FamilyChoice(name_of(found.marks, tokenizer), f"the chat template {found.source}")


def name_of(marks: Marks, tokenizer: PreTrainedTokenizerFast) -> str:
    """Name of the family with these marks: a known name, or the marks themselves."""
    return _shown_name(marks, tokenizer) or family_name(marks)


def _shown_name(marks: Marks, tokenizer: PreTrainedTokenizerFast) -> str | None:
    """Name of the known family whose marks decoded text shows of these."""
    opening, close, behind = (as_shown(tokenizer, mark) for mark in marks[:3])
    return _BY_MARKS.get(Marks(opening, close + behind))


def show_marks(tokenizer: PreTrainedTokenizerFast) -> None:
    """Make decoded text show a model's marks, if they are special tokens.

    Their names are kept in the tokenizer's `shown_marks`. A known family whose marks can be told in decoded text as it
    is, such as gpt-oss, stays so.
    """
    found = marks_of(tokenizer)
    if found is not None and _shown_name(found.marks, tokenizer) not in (None, _BY_MARKS.get(found.marks)):
        return
    texts = found.marks[:4] if found else ()
    backend: Any = tokenizer.backend_tokenizer
    tokens = hidden_in(backend, texts) - {tokenizer.eos_token}
    if tokens:
        tokenizer._tokenizer = with_visible(backend, tokens)
    tokenizer.shown_marks = tokens


def family_name(marks: Marks) -> str:
    """Name of the family that writes these marks: a known name, or the marks themselves."""
    own = GAP.join(marks[:4])
    while own.endswith(GAP):
        own = own.removesuffix(GAP)
    return _BY_MARKS.get(marks, own)


def written_marks(text: str) -> list[Marks]:
    """The known marks of thinking of which a model's text has one."""
    found = marks_in(text)
    return [Marks(*pair) for pair in pairs_in(text)] if found is None else [found]


def as_shown(tokenizer: PreTrainedTokenizerFast, text: str) -> str:
    """A text as decoded from its tokens, without those that are special."""
    backend = tokenizer.backend_tokenizer
    return str(backend.decode(backend.encode(text, add_special_tokens=False).ids, skip_special_tokens=True))


_MARKS: dict[str, Derived | None] = {}  # by chat template


def marks_of(tokenizer: PreTrainedTokenizerFast) -> Derived | None:
    """The thinking marks that a tokenizer's chat template shows; None if it shows no thinking."""
    declared = declared_marks(getattr(tokenizer, "response_template", None))
    if declared is not None:
        return declared
    key = str(tokenizer.chat_template)
    if key not in _MARKS:
        _MARKS[key] = derived_marks(ChatTemplate(tokenizer))
    return _MARKS[key]


def local_file(folder: str, name: str) -> Path | None:
    """Find a model's file in its folder, or in the hub's cache; None if it is not here."""
    if Path(folder).is_dir():
        path = Path(folder) / name
        return path if path.is_file() else None
    try:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(folder, name)
    except (ImportError, ValueError):  # no hub client, or not a hub name
        return None
    return Path(found) if isinstance(found, str) else None


def config_of(folder: str, name: str = "config.json") -> Mapping[str, Any]:
    """Read a local JSON file of a model; empty if missing or not a JSON object."""
    path = local_file(folder, name)
    try:
        said = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # the loader reports the error
        return {}
    return said if isinstance(said, dict) else {}


def _listed(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]
