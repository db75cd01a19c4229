"""What a worker has left in a task: its text, why it ended, and what it cost."""

from __future__ import annotations

from typing import NamedTuple

from scaffolding_ext.errors import NoOutputError
from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.protocol.notes import TokenCounts, num_decoded_of, token_counts_of


def output_of(task: GenerationTask) -> str:
    """The text that a worker wrote into the task.

    Raises:
        NoOutputError: There is none. (Some hosts complete a request whose worker failed with None.)
    """
    if task.output_str is None:
        raise NoOutputError(
            f"the worker {task.worker_tag!s} left no output in a {type(task).__name__}; it failed silently: "
            "read its log"
        )
    return task.output_str


def finish_reason_of(task: GenerationTask) -> str | None:
    """Why the task's generation ended: `"length"` at its budget, else what the worker says, `"stop"` if it is silent.

    A worker that says nothing (upstream's) is judged by its tokens: all of `max_tokens` is `"length"`, fewer `"stop"`.
    None where that cannot be known either, or where a stream goes on.
    """
    reason: str | None = getattr(task, "finish_reason", None)  # older and some newer releases lack the field
    num_decoded = num_decoded_of(task)
    if reason is not None or num_decoded is None or task.max_tokens is None:
        return reason
    if not getattr(task, "end_flag", True):
        return None
    return "length" if num_decoded >= task.max_tokens else "stop"


class TaskCost(NamedTuple):
    """What a task has cost so far, by what the tokens are: those that it read, and those that it wrote."""

    read: TokenCounts
    written: TokenCounts


def cost_of(task: Task) -> TaskCost | None:
    """The task's token counts, told apart; None if they are unknown.

    Reused tokens are read ones, but for output that was not decoded: a worker that answers from a store reused it.
    """
    counts = token_counts_of(task)
    if counts is None:
        return None
    reused = 0
    if counts.reused and isinstance(task, GenerationTask):
        reused = min(counts.reused, max(0, len(task.output_tokens or ()) - counts.decoded))
    return TaskCost(TokenCounts(0, counts.prefilled, counts.reused - reused), TokenCounts(counts.decoded, 0, reused))
