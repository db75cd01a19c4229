"""The models that ship with the package: location of the weights, prompt texts and tokenizer."""

from __future__ import annotations

import functools
import importlib.resources
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaffolding_ext.errors import ConfigError, MissingDependencyError
from scaffolding_ext.prompts.families import PromptFamily
from scaffolding_ext.tinylm import grammar

FAMILY = PromptFamily(
    think_close="</think>",
    probe=grammar.PROBE,
    close=grammar.CLOSE,
    close_closed=grammar.CLOSE.removeprefix("</think>"),
    answer_end="}.",
    verdict=grammar.VERDICT,
)


def model_folder(model: str) -> str:
    """Folder with the weights of `tinylm/NAME`.

    Raises:
        ConfigError: No embedded model has that name.
    """
    weights = Path(str(importlib.resources.files("scaffolding_ext.tinylm"))) / "weights"
    folder = weights / model.removeprefix("tinylm/")
    if not os.path.isfile(folder / "config.json"):
        names = sorted(path.parent.relative_to(weights).as_posix() for path in weights.glob("**/config.json"))
        known = ", ".join(f"tinylm/{name}" for name in names) or "none"
        raise ConfigError(f"unknown embedded model {model!r}; known: {known}")
    return str(folder)


class EmbeddedTokenizer:
    """The parts of a transformers tokenizer that this package needs; everything else is delegated to transformers.

    Raises:
        MissingDependencyError: tokenizers or jinja2 is not installed.
    """

    is_fast = True
    shown_marks: frozenset[str] = frozenset()  # see `show_marks`

    def __init__(self, folder: str) -> None:
        try:
            from jinja2.sandbox import ImmutableSandboxedEnvironment
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingDependencyError("transformers", "hf") from error
        self.name_or_path = folder
        self.backend_tokenizer = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
        self.chat_template = Path(folder, "chat_template.jinja").read_text(encoding="utf-8")
        config = json.loads(Path(folder, "tokenizer_config.json").read_text(encoding="utf-8"))
        self.eos_token: str = config["eos_token"]
        self.eos_token_id: int | None = self.backend_tokenizer.token_to_id(self.eos_token)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._shipped = self.chat_template
        self._template = environment.from_string(self._shipped)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab())

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        *,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **options: Any,
    ) -> Any:
        """Render a conversation as text, as transformers does."""
        if tokenize or options.get("continue_final_message") or self.chat_template != self._shipped:
            options = {"chat_template": self.chat_template, "tokenize": tokenize, **options}
            return self._whole.apply_chat_template(conversation, add_generation_prompt=add_generation_prompt, **options)
        variables = {"tools": None, "documents": None, "eos_token": self.eos_token, **options}
        return self._template.render(messages=conversation, add_generation_prompt=add_generation_prompt, **variables)

    @functools.cached_property
    def _whole(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.name_or_path)

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size(with_added_tokens=True))

    def __call__(self, *texts: Any, **options: Any) -> Any:
        return self._whole(*texts, **options)

    def __reduce__(self) -> tuple[type[EmbeddedTokenizer], tuple[str], dict[str, Any]]:
        state = {"chat_template": self.chat_template}
        return EmbeddedTokenizer, (self.name_or_path,), state  # compiled templates cannot be copied or pickled

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python protocols such as copying and pickling
            raise AttributeError(name)
        return getattr(self._whole, name)
