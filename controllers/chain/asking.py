"""Asks an unfinished chain of thought for its answer."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.answers import up_to_brace
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.continuation import continuation
from scaffolding_ext.prompts.sampling_params import apply_sampling_params
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.notes import PROBE, set_purpose
from scaffolding_ext.protocol.task_results import output_of


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
