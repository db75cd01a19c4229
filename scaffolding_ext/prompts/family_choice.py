"""Which prompt family a model is of, as far as its own files say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedTokenizerFast


class FamilyChoice(NamedTuple):
    """A prompt family, and why it was taken.

    Attributes:
        name: A name in `FAMILIES`.
        reason: What in the model's files speaks for it, or who named it.
        is_guess: Whether nobody named it.
    """

    name: str
    reason: str
    is_guess: bool = True

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


# What a model's config.json calls it, where its marks are of a kind of its own.
_BY_TYPE = {"gpt_oss": "gpt_oss", "GptOssForCausalLM": "gpt_oss"}
# What a chat template writes around thinking, the most particular mark first.
_BY_MARK = {
    "<|channel|>": "gpt_oss",
    "[/THINK]": "magistral",
    "</think>": "deepseek_r1",
    "<think>": "deepseek_r1",
    "detailed thinking": "deepseek_r1",  # a template that leaves the marks to the model
}
_THINKING = "</think>"


def chosen_family(folder: str, tokenizer: PreTrainedTokenizerFast) -> FamilyChoice:
    """The family by `model_type` and `architectures` of config.json, else by the chat template's marks.

    A model without a chat template thinks if its vocabulary has `</think>`. A chat template without a mark is that of a
    model which does not think, whatever its vocabulary has (Qwen3-Instruct-2507 is one).

    Args:
        folder: The model's folder, or its name on the hub; only what is on this machine is read.
        tokenizer: The model's.
    """
    config = config_of(folder)
    for key in ("model_type", "architectures"):
        for said in _listed(config.get(key)):
            if said in _BY_TYPE:
                return FamilyChoice(_BY_TYPE[said], f"config.json has {key} {said}")
    if tokenizer.chat_template is not None:
        mark = thinking_mark(str(tokenizer.chat_template))
        if mark is not None:
            return FamilyChoice(_BY_MARK[mark], f"the chat template has {mark}")
        return FamilyChoice("instruct", f"the chat template has no mark of thinking, such as {_THINKING}")
    if _THINKING in tokenizer.get_vocab():
        return FamilyChoice("deepseek_r1", f"there is no chat template, and the vocabulary has {_THINKING}")
    return FamilyChoice("instruct", f"there is no chat template, and the vocabulary has no {_THINKING}")


def thinking_mark(template: str) -> str | None:
    """What a chat template writes around thinking; None where it writes nothing of the kind."""
    return next((mark for mark in _BY_MARK if mark in template), None)


def config_of(folder: str, name: str = "config.json") -> Mapping[str, Any]:
    """A JSON file of a model that is on this machine; empty where there is none, or it is no JSON object."""
    path = Path(folder) / name
    if not Path(folder).is_dir():
        try:
            from huggingface_hub import try_to_load_from_cache

            found = try_to_load_from_cache(folder, name)
        except (ImportError, ValueError):  # no client of the hub, or no name of the hub's
            return {}
        if not isinstance(found, str):
            return {}
        path = Path(found)
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # whoever loads the model says what is wrong with it
        return {}
    return said if isinstance(said, dict) else {}


def _listed(value: object) -> list[str]:
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]
