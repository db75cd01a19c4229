"""What every worker that streams needs: whose scope a task runs in, and its output so far."""

from __future__ import annotations

from scaffolding_ext.protocol import GenerationTask, ScaffoldingOutput, current_scope


def current_scope_id() -> str:
    """The scope of the task that is being served; empty outside any."""
    scope = current_scope.get()
    return "" if scope is None else scope.scope_id


def output_so_far(task: GenerationTask) -> ScaffoldingOutput:
    """What the task has so far, for a reader who looks at it later."""
    return ScaffoldingOutput(task.output_str, list(task.output_tokens or ()))
