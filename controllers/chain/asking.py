"""Tasks that go on behind a chain of thought: with another piece of it, or with the answer that it gives so far."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.answers import begun_box, up_to_brace
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.prompting import encode
from scaffolding_ext.prompts.sampling_params import apply_sampling_params
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.notes import PROBE, notes_of, set_notes, set_purpose, set_turn_start
from scaffolding_ext.protocol.task_results import output_of
from scaffolding_ext.protocol.worker_tags import WorkerTag


def continuation(prompt: GenerationTask, prefix: Prefix, max_tokens: int, suffix: str = "") -> GenerationTask:
    """A task that generates after prompt, prefix and suffix, as token ids where all three are known, and as text."""
    suffix_ids = encode(suffix) if suffix else []
    ids = None
    if prompt.input_tokens is not None and prefix.token_ids is not None and suffix_ids is not None:
        ids = prompt.input_tokens + prefix.token_ids + suffix_ids
    text = None if prompt.input_str is None else prompt.input_str + prefix.text + suffix
    task = GenerationTask(worker_tag=WorkerTag.GENERATION, input_str=text, input_tokens=ids, max_tokens=max_tokens)
    if suffix_ids:
        set_notes(task, notes_of(task)._replace(num_suffix_tokens=len(suffix_ids)))
    if prompt.input_str is not None and (prefix.text or suffix):
        set_turn_start(task, len(prompt.input_str))
    return task


def asking(prompt: GenerationTask, prefix: Prefix, suffix: str, sampling_params: dict[str, Any]) -> GenerationTask:
    """A task that asks an unfinished chain for its answer with a suffix that opens a box.

    Args:
        prompt: The task that the chain answers.
        prefix: The chain so far.
        suffix: `family.probe` to ask in passing, `family.close` or `family.close_closed` to end with the answer.
        sampling_params: Sampling fields of the answer, `max_tokens` among them.
    """
    task = continuation(prompt, prefix, sampling_params["max_tokens"], suffix)
    apply_sampling_params(task, sampling_params)
    set_purpose(task, PROBE)
    return task


def asked_answer(task: GenerationTask) -> str | None:
    """The answer in the response to `asking`; None where the box was not closed or is empty."""
    return up_to_brace(output_of(task)) or None


def forced_answer(task: GenerationTask) -> str | None:
    """The answer in the response to `asking` at the end of a chain, where there will be no other.

    An answer whose box was not closed counts, too: it ends with its line. None where there is nothing in the box.
    """
    return begun_box(output_of(task))
