"""The task that goes on behind a prompt and what was written on it so far."""

from __future__ import annotations

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.prompting import encode
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.notes import notes_of, set_notes, set_turn_start
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
