"""The running request's prompting for controllers: text, token ids, and further turns."""

from __future__ import annotations

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.prompting import DEFAULT_FAMILY, PromptFamily, TextPrompting, family_named
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.request.program import current_program


def prompt_family() -> PromptFamily:
    """Return the prompt family of the running request's prompting; the default family without one."""
    prompting = _prompting()
    return family_named(DEFAULT_FAMILY) if prompting is None else prompting.family


def next_turn(task: GenerationTask, prompt: str) -> GenerationTask:
    """Build a task that asks again in the conversation of a finished task (see `Prompting.next_turn`).

    Raises:
        ConfigError: The running request has no prompting to render a user's turn.
        NoOutputError: The task has no output.
    """
    prompting = _prompting()
    if prompting is None:
        raise ConfigError(
            "is not set, but it must render a further turn: set controller.prompting = Prompting.for_model(NAME), in "
            "contract tests for example 'tinylm/target'",
            "prompting",
        )
    return prompting.next_turn(task, prompt)


def encode(text: str) -> list[int] | None:
    prompting = _prompting()
    return None if prompting is None else prompting.encode(text)


def decode(token_ids: list[int]) -> str | None:
    prompting = _prompting()
    return None if prompting is None else prompting.decode(token_ids)


def longest_len(*texts: str) -> int:
    """Tokens of the longest text; without a tokenizer, an upper bound by its UTF-8 bytes."""
    return max(len(text.encode()) if (ids := encode(text)) is None else len(ids) for text in texts)


def _prompting() -> TextPrompting | None:
    program = current_program()
    return None if program is None else program.question.prompting
