"""A prompting whose tokens are characters, as those of a `ScriptedWorker` are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scaffolding_ext.prompts.families import FAMILIES

END = 0  # ends a text, and has none


class Characters:
    """Encodes and decodes without a tokenizer, and without a chat template."""

    family = FAMILIES["instruct"]

    def apply(self, task: Any, history: Any = (), raw: bool = False) -> None:
        task.input_tokens = self.encode(task.input_str)

    def is_open(self, prompt: str, family: Any = None) -> None:
        return None

    def family_behind(self, prompt: str) -> Any:
        return self.family

    def encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(token) for token in token_ids if token != END)
