"""P(yes) behind texts that end in a question: natively where the worker verifies, else by one generated token each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.protocol import ControllerGenerator
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.lowering import lower_verify, write_back_verify
from scaffolding_ext.protocol.worker_tags import WorkerTag, tag_name
from scaffolding_ext.request.program import record


def first_tokens(yes: str, no: str, encode: Callable[[str], list[int]]) -> tuple[int, int]:
    """The tokens that two verdicts begin with.

    Raises:
        ConfigError: They begin with the same one.
    """
    first, other = encode(yes)[0], encode(no)[0]
    if first == other:
        raise ConfigError(f"{yes!r} and {no!r} begin with the same token; give words that differ in their first", "yes")
    return first, other


def ask_verdicts(controller: BaseController, tasks: Sequence[VerifyTask]) -> ControllerGenerator:
    """Have a worker serve verify tasks, all in one batch; where it cannot, lower them, and say so in the trace.

    Args:
        controller: Knows what its worker can do.
        tasks: Get their scores; all are one worker's.

    Raises:
        NoOutputError: The worker left no scores.
    """
    tag = WorkerTag(tag_name(tasks[0].worker_tag))
    if controller.can_serve(tag, VerifyTask):
        yield list(tasks)
    else:
        record("lowered", task="VerifyTask", to="GenerationTask", reason="the worker does not serve it")
        lowered = [lower_verify(task) for task in tasks]
        yield [piece for pieces in lowered for piece in pieces]
        for task, pieces in zip(tasks, lowered, strict=True):
            write_back_verify(task, pieces)
    if any(task.scores is None for task in tasks):
        raise NoOutputError(f"the worker {tag.value!r} left no scores in a VerifyTask; read its log")
