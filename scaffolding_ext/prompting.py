"""How a question becomes a prompt, and how a model family's thinking opens, is probed, and is closed.

A `Prompting` is applied once when a request starts. It holds the tokenizer by reference: cloning a controller copies
the reference, never the tokenizer.
"""

from __future__ import annotations

import functools
import importlib.resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scaffolding_ext.errors import ConfigError, MissingDependencyError, UnknownNameError
from scaffolding_ext.tinylm import grammar

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from scaffolding_ext.protocol import GenerationTask


class PromptFamily(NamedTuple):
    """The texts that steer one family of reasoning models.

    Attributes:
        think_close: Marks the end of thinking in the completion.
        probe: Appended to an unfinished chain to ask for its current answer, up to and with the opening brace.
        close: Appended to force the final answer while thinking is open, up to and with the opening brace.
        close_closed: The same after thinking has been closed.
        answer_end: What follows the answer in the text that `close` opens.
    """

    think_close: str
    probe: str
    close: str
    close_closed: str
    answer_end: str


FAMILIES = {
    # The suffixes of the released Dynasor code, shared by the R1 distillates and QwQ.
    "deepseek_r1": PromptFamily(
        think_close="</think>",
        probe="... Oh, I suddenly got the answer to the whole problem, **Final Answer**\n\n\\[ \\boxed{",
        close="\n\n...</think>\n Oh, I have got the answer to the whole problem\n**Final Answer:**\n\\[\n \\boxed{",
        close_closed="\n\n Oh, I have got the answer to the whole problem\n**Final Answer:**\n\\[\n \\boxed{",
        answer_end="}\n\\]",
    ),
    # What the embedded models were trained on.
    "tinylm": PromptFamily(
        think_close="</think>",
        probe=grammar.PROBE,
        close=grammar.CLOSE,
        close_closed=grammar.CLOSE.removeprefix("</think>"),
        answer_end="}.",
    ),
}
DEFAULT_FAMILY = "deepseek_r1"


def family_named(name: str) -> PromptFamily:
    """The family of that name.

    Raises:
        UnknownNameError: There is none; add it to `FAMILIES`.
    """
    family = FAMILIES.get(name)
    if family is None:
        raise UnknownNameError(f"unknown prompt family {name!r}; known: {', '.join(FAMILIES)}")
    return family


def model_folder(model: str) -> str:
    """Resolve `tinylm/NAME` to the folder of the weights that ship with the package; other names pass through.

    Raises:
        UnknownNameError: No embedded model has that name.
    """
    if not model.startswith("tinylm/"):
        return model
    weights = Path(str(importlib.resources.files("scaffolding_ext.tinylm"))) / "weights"
    folder = weights / model.removeprefix("tinylm/")
    if not (folder / "config.json").exists():
        known = ", ".join(f"tinylm/{path.parent.name}" for path in sorted(weights.glob("*/config.json"))) or "none"
        raise UnknownNameError(f"unknown embedded model {model!r}; known: {known}")
    return str(folder)


@functools.lru_cache(maxsize=8)
def load_tokenizer(model: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder, hub name or `tinylm/NAME`; one object a name and process."""
    folder = model_folder(model)
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise MissingDependencyError("transformers", "hf") from error
    tokenizer = AutoTokenizer.from_pretrained(folder)
    if not tokenizer.is_fast:
        raise ConfigError(f"the tokenizer of {model!r} has no fast (Rust) version, which this package needs", "prompt")
    return tokenizer


class Prompting:
    """System prompt, chat template and prompt family of a stack.

    Args:
        tokenizer: A fast tokenizer. Where it has a chat template, prompts are rendered with it, opened for the
            assistant; elsewhere the prompt is used as it is.
        family: A name in `FAMILIES`.
        system_prompt: Goes before the user's prompt, or None.
        chat_template: False uses prompts as they are even where the tokenizer has a template.

    Raises:
        UnknownNameError: The family is unknown.
        ConfigError: A system prompt is given but there is no chat template to place it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        family: str = DEFAULT_FAMILY,
        system_prompt: str | None = None,
        chat_template: bool = True,
    ) -> None:
        self.family = family_named(family)
        self._tokenizer = tokenizer
        self._system_prompt = system_prompt
        self._templated = chat_template and tokenizer.chat_template is not None
        if system_prompt is not None and not self._templated:
            raise ConfigError(
                "system_prompt needs a chat template, and this tokenizer has none", "prompt.system_prompt"
            )
        self._encode = functools.lru_cache(maxsize=256)(self._encode_uncached)

    @classmethod
    def for_model(cls, model: str, family: str | None = None, **options: Any) -> Prompting:
        """The prompting of a model folder, hub name or `tinylm/NAME`; the family is guessed from the name."""
        return cls(
            load_tokenizer(model), family or ("tinylm" if model.startswith("tinylm/") else DEFAULT_FAMILY), **options
        )

    def apply(self, task: GenerationTask) -> None:
        """Turn the task's `input_str` from the user's prompt into the model's, with `input_tokens` beside it."""
        text = task.input_str or ""
        if self._templated:
            messages = [{"role": "system", "content": self._system_prompt}] if self._system_prompt else []
            messages.append({"role": "user", "content": text})
            text = str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        task.input_str = text
        task.input_tokens = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=not self._templated).ids

    def encode(self, text: str) -> list[int]:
        """Token ids of a piece of text that continues a chain (no special tokens are added)."""
        return list(self._encode(text))

    def decode(self, token_ids: list[int]) -> str:
        """The text of token ids, special tokens left out."""
        return str(self._tokenizer.backend_tokenizer.decode(token_ids, skip_special_tokens=True))

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)

    def __deepcopy__(self, memo: dict[int, Any]) -> Prompting:
        return self  # shared by design: copying a large tokenizer costs hundreds of milliseconds
