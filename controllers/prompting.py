"""The running request's prompting for controllers: text, token ids, and further turns."""

from __future__ import annotations

import bisect

from scaffolding_ext.answers import extract
from scaffolding_ext.answers.reading import SplitText
from scaffolding_ext.answers.stop_strings import StopStrings, stop_strings
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.families import DEFAULT_FAMILY, PromptFamily, family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import meta_of
from scaffolding_ext.request.program import current_program


def prompt_family(prompt: GenerationTask | None = None) -> PromptFamily:
    """Return the prompt family behind a task's input, or behind the request's question; the default one without any."""
    program = current_program()
    if program is None or program.question.prompting is None:
        return family_named(DEFAULT_FAMILY)
    prompting = program.question.prompting
    if prompt is None or program.question.raw or prompt.input_str is None:
        return program.question.family or prompting.family
    return prompting.family_behind(prompt.input_str[: meta_of(prompt).turn_start])


def thinking_is_open(prompt: GenerationTask, family: PromptFamily) -> bool | None:
    """Return True if a task's input ends in open thinking; None if that cannot be known."""
    program, prompting = current_program(), _prompting()
    text = prompt.input_str
    if program is None or prompting is None or program.question.raw or text is None:
        return None
    start = meta_of(prompt).turn_start
    is_open = prompting.is_open(text[:start], family)
    return is_open if start is None else not begun(text[start:], is_open, family).has_thought


def begun(text: str, is_open: bool | None, family: PromptFamily) -> SplitText:
    """Split a text that may go on; as long as its thinking may be open, `has_thought` is False."""
    if not family.thinks:
        return SplitText("", text, has_thought=False)
    if not any(mark in text for mark in (family.think_close, family.think_open) if mark):
        return SplitText("", text, has_thought=False) if is_open is not False else family.split(text, False)
    splitter = family.splitter(is_open)
    splitter.feed(text)
    has_thought = splitter.has_thought
    return splitter.end()._replace(has_thought=has_thought)


def reading_of(prompt: GenerationTask, text: str, family: PromptFamily | None = None) -> SplitText:
    """Split the text that answers a task's prompt so far; see `begun`."""
    family = family or prompt_family(prompt)
    return begun(text, thinking_is_open(prompt, family) if family.thinks else False, family)


def answer_of(prompt: GenerationTask, text: str) -> str | None:
    """Extract the answer to a task's prompt; thinking is read only if nothing behind it states one."""
    family = prompt_family(prompt)
    if not family.thinks or family.think_close not in text:
        return extract(text)
    reading = reading_of(prompt, text, family)
    if not reading.has_thought:
        return extract(text)
    return extract(reading.answer) or extract(reading.thinking)


def check_tools(is_required: bool) -> bool:
    """Return True if the running request's tools go to a chat server; ConfigError if nothing would read their calls."""
    prompting = _prompting()
    if prompting is not None:
        prompting.check_tools(is_required)
    return prompting is not None and prompting.chat


def held_stops(task: GenerationTask, family: PromptFamily) -> StopStrings:
    """Take the stop strings off a task that may still think: they end its answer only."""
    is_answering = meta_of(task).turn_start is not None and thinking_is_open(task, family) is False
    if not task.stop or not family.thinks or is_answering:
        return StopStrings()
    stops = StopStrings(stop_strings(task.stop))
    task.stop = None
    return stops


def num_tokens_to(end: int, token_ids: list[int]) -> int:
    """Tokens that hold the first `end` characters of their text; all of them if no tokenizer is known."""
    if decode([]) is None:
        return len(token_ids)
    return bisect.bisect_left(range(len(token_ids)), end, key=lambda num: len(decode(token_ids[:num]) or ""))


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


def _prompting() -> Prompting | None:
    program = current_program()
    return None if program is None else program.question.prompting
