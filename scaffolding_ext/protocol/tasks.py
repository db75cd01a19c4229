"""Tasks and steps missing in Scaffolding's protocol: scores, comparisons, and steps that are cut short.

Plain generation uses the protocol's task. `lowering` rewrites other tasks as plain generation if it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from scaffolding_ext.answers.comparison import Verdict
from scaffolding_ext.protocol import ParallelProcess, Task

REWARD = "reward"  # key in custom_output_params of a RewardTask's score


@dataclass
class ScoreTask(Task):
    """Per-token log-probabilities (natural logs) of a continuation given a prompt, both as ids or both as text.

    Text is tokenised as a whole: a token across the border is scored with the continuation.
    """

    input_tokens: list[int] | None = None
    input_str: str | None = None
    continuation_tokens: list[int] | None = None
    continuation_str: str | None = None
    logprobs: list[float] | None = None


@dataclass
class KeepKVTask(Task):
    """Tells a worker which KV its request can still use. The latest such task applies until the request ends.

    The worker frees other cached KV that no other request has used. The KV of `sequences` (token ids that a later task
    may begin with) ages like all KV: when it was kept longer, searches recomputed more tokens (docs/engine_memory.md).
    """

    sequences: list[list[int]] = field(default_factory=list)


@dataclass
class CompareTask(Task):
    """Groups equal answers, or compares pairs of them.

    Attributes:
        answers: None stands for "no answer" and equals nothing.
        pairs: Indices of the answers to compare with each other; None groups all answers.
        verdicts: Result for pairs, one for each. A worker may leave `classes` instead.
        classes: Result: a class number for each answer in order of first appearance, -1 for None.
        num_undetermined: Result: distinct answers that count as different because no comparison could decide.
    """

    answers: list[str | None] = field(default_factory=list)
    pairs: list[tuple[int, int]] | None = None
    verdicts: list[Verdict] | None = None
    classes: list[int] | None = None
    num_undetermined: int | None = None


class MeaningTask(CompareTask):
    """Groups open-ended answers that mean the same."""


class AllowedFailures:
    """Failures that a step's branches may have, as its attribute `failures`; TensorRT-LLM's host raises the first.

    Args:
        most: Branches that may fail.

    Attributes:
        errors: Errors of failed branches, by the last number of the branch's path.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.errors: dict[int, Exception] = {}


class FirstBranches(ParallelProcess):
    """Branches of which the controller needs only the first ones to end.

    When enough branches have ended, or time is over, the host cancels the others and sets `has_ended`. A cancelled
    branch has no output; the tokens that its worker reports are counted. TensorRT-LLM's host treats them as plain
    branches, and waits for all of them.

    Args:
        branches: Generators that run in parallel.
        num_needed: Branches that are enough; None: all.
        is_enough: Called when a branch has ended; None: only the number counts.
        seconds: Time limit from now on; None has no limit.
        least: Branches that must end even if the time is over.
    """

    def __init__(
        self,
        branches: Iterable[Any],
        num_needed: int | None = None,
        *,
        is_enough: Callable[[], bool] | None = None,
        seconds: float | None = None,
        least: int = 0,
    ) -> None:
        super().__init__([], [], [])
        self.sub_gens = list(branches)
        self.num_needed = num_needed
        self.is_enough = is_enough
        self.seconds = seconds
        self.least = least
        self.has_ended = [True] * len(self.sub_gens)


class LimitedStep(list[Task]):
    """Tasks with a time limit.

    After `seconds` the host cancels the running tasks and sets `is_given_up`. Such a task has no output; the tokens
    that its worker reports are counted. With 0 seconds or less nothing runs. TensorRT-LLM's host treats the step as a
    plain list, and waits for all tasks.
    """

    def __init__(self, tasks: Iterable[Task], seconds: float) -> None:
        super().__init__(tasks)
        self.seconds = seconds
        self.is_given_up = False
