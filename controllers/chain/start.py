"""Starts a chain of thought, of the kind that the worker can serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.chain.chain import Chain
from scaffolding_ext.controllers.chain.chunk_chain import ChunkChain
from scaffolding_ext.controllers.chain.stream_chain import StreamChain
from scaffolding_ext.controllers.prompting import longest_len
from scaffolding_ext.prompts.prompting import PromptFamily
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask
from scaffolding_ext.protocol.worker_tags import WorkerTag
from scaffolding_ext.request.program import record


def start_chain(
    controller: BaseController,
    task: GenerationTask,
    family: PromptFamily,
    *,
    max_tokens: int,
    sampling_params: Mapping[str, Any] | None = None,
    answer_tokens: int = 20,
    mode: Literal["stream", "chunk"] = "stream",
    streaming_output: bool = False,
    max_lead: int | None = None,
) -> Chain:
    """A chain on a task's prompt, of the kind that the worker can serve; what is lowered is said in the trace.

    Args:
        controller: Knows what its worker can do.
        task: The chain answers its prompt, with its sampling fields, and within its `max_tokens` where it has any.
        family: How the chain is asked.
        max_tokens: The chain's budget; less, where the worker's context leaves less.
        sampling_params: Sampling fields of the chain.
        answer_tokens: Tokens of an answer that is asked for; the context keeps room for them.
        mode: `"stream"` falls back to chunks where the worker cannot stream.
        streaming_output: Whether the chain is streamed to the caller; chunks are not.
        max_lead: Tokens that a stream may be ahead of the position asked for; None takes one spacing.

    Raises:
        ConfigError: The prompt leaves no room in the worker's context.
    """
    wanted = max_tokens if task.max_tokens is None else min(task.max_tokens, max_tokens)
    reserved = longest_len(family.probe, family.close, family.close_closed) + answer_tokens
    budget = controller.budget_within_context(WorkerTag.GENERATION, task, wanted, reserved)
    if mode == "stream" and not controller.can_serve(WorkerTag.GENERATION, StreamGenerationTask):
        record("lowered", task="StreamGenerationTask", to="GenerationTask", reason="the worker cannot stream")
        mode = "chunk"
    params = dict(sampling_params or {})
    if mode == "chunk":
        return ChunkChain(task, budget, params)
    if streaming_output and not controller.can_stream_output(WorkerTag.GENERATION, StreamGenerationTask):
        record("lowered", what="streaming", reason="the worker cannot stream a StreamGenerationTask to the caller")
        streaming_output = False
    return StreamChain(task, budget, params, streaming_output, max_lead)
