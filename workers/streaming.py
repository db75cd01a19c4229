"""What every worker that streams needs: which streams are open, where one stands, and what its caller sees of it."""

from __future__ import annotations

from typing import TypeVar

from scaffolding_ext.protocol import GenerationTask, ScaffoldingOutput, StreamGenerationTask, current_scope

T = TypeVar("T")


class OpenStreams(dict[str, set[T]]):
    """The streams that a worker holds open, by the scope of the task that opened them."""

    def add(self, stream: T) -> None:
        """Note a stream of the task that is being served."""
        scope = current_scope.get()
        self.setdefault("" if scope is None else scope.scope_id, set()).add(stream)

    def discard(self, stream: T) -> None:
        """Forget a stream; one that is not known is none."""
        for scope_id, streams in list(self.items()):
            streams.discard(stream)
            if not streams:
                del self[scope_id]


def is_over(task: StreamGenerationTask) -> bool:
    """Whether a stream has nothing more to give; one that is cancelled before it began ends here."""
    if task.cancel_flag and task.request_handle is None:
        task.end_flag = True
    return bool(task.end_flag)


def next_len(task: StreamGenerationTask) -> int:
    """How many tokens a stream shall have after its next step, where it does not end before."""
    return len(task.output_tokens or ()) + max(1, task.streaming_step or 1)


def show(task: GenerationTask) -> None:
    """Let the caller see what the task has so far."""
    task.streaming_output_list.append(ScaffoldingOutput(task.output_str, list(task.output_tokens or ())))
