"""Writes into a task what a server has answered so far."""

from __future__ import annotations

from scaffolding_ext.errors import EngineError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.notes import set_token_counts
from scaffolding_ext.workers.openai.requests import RequestBodies
from scaffolding_ext.workers.openai.stream import Answer


def fill(task: GenerationTask, answer: Answer, bodies: RequestBodies, seconds: float) -> None:
    """Write an answer into its task.

    Args:
        task: Gets text, ids, log-probabilities, counts and times.
        answer: What the server has said.
        bodies: The maker of the request.
        seconds: Seconds since the request was sent.

    Raises:
        EngineError: Log-probabilities were asked for, and some tokens have none.
    """
    ids = answer.token_ids
    shown = ids is not None and not bodies.flavor.ids.with_text
    task.output_str = bodies.decode(ids) if ids is not None and shown else answer.text
    if (stops := bodies.stops(task)) is not None:
        task.output_str = stops.strings.cut(task.output_str)
    task.output_tokens = ids
    task.finish_reason = answer.finish_reason
    set_token_counts(task, answer.counts)
    if hasattr(task, "ttft_s"):  # upstream's 1.2 does not have it yet
        task.latency_s = seconds
        task.usage_prompt_tokens = answer.counts.prefilled + answer.counts.reused
        task.usage_completion_tokens = answer.counts.decoded
    if task.num_logprobs:
        task.logprobs = answer.logprobs
        if len(answer.logprobs) != len(ids or ()):
            raise EngineError(
                f"the server gave log-probabilities of {len(answer.logprobs)} of {len(ids or ())} tokens, though "
                f"num_logprobs is {task.num_logprobs}. It may be an older release: set flavor='auto', which tests this"
            )
