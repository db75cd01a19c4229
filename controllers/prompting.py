"""The running request's prompting, as a controller uses it: its texts, its token ids, and a further turn."""

from __future__ import annotations

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.prompting import DEFAULT_FAMILY, PromptFamily, TextPrompting, family_named
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.request.program import current_program


def prompt_family() -> PromptFamily:
    """The prompt family of the running request's prompting; the default family where it has no prompting."""
    prompting = _prompting()
    return family_named(DEFAULT_FAMILY) if prompting is None else prompting.family


def next_turn(task: GenerationTask, prompt: str) -> GenerationTask:
    """A task that asks again in the conversation of a task that has its output (see `Prompting.next_turn`).

    Raises:
        ConfigError: The running request has no prompting, so that nothing says how a turn of the user looks.
        NoOutputError: The task has no output.
    """
    prompting = _prompting()
    if prompting is None:
        raise ConfigError(
            "is not set, and it renders a further turn: set controller.prompting = Prompting.for_model(NAME); in a "
            "contract test 'tinylm/target' will do",
            "prompting",
        )
    return prompting.next_turn(task, prompt)


def encode(text: str) -> list[int] | None:
    """Token ids of a piece of text by the running request's prompting; None without a tokenizer, where text is sent."""
    prompting = _prompting()
    return None if prompting is None else prompting.encode(text)


def decode(token_ids: list[int]) -> str | None:
    """The text of token ids by the running request's prompting; None where it has no tokenizer."""
    prompting = _prompting()
    return None if prompting is None else prompting.decode(token_ids)


def longest_len(*texts: str) -> int:
    """Tokens of the longest of some texts; where the running request has no tokenizer, at most its UTF-8 bytes."""
    return max(len(text.encode()) if (ids := encode(text)) is None else len(ids) for text in texts)


def _prompting() -> TextPrompting | None:
    program = current_program()
    return None if program is None else program.question.prompting
