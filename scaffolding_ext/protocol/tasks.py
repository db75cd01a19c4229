"""What Scaffolding's protocol lacks: scores of a continuation, comparisons of answers, steps that are cut.

Plain generation stays the protocol's own task. `lowering` rewrites other tasks as plain generation where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from scaffolding_ext.answers.comparison import Verdict
from scaffolding_ext.protocol import ParallelProcess, Task

REWARD = "reward"  # key of custom_output_params under which a worker leaves the score of a RewardTask


@dataclass
class ScoreTask(Task):
    """Per-token log-probabilities of a continuation given a prompt. Give both as token ids, or both as text.

    Text is tokenised whole: a token that reaches over the border is scored with the continuation.

    Attributes:
        logprobs: Result: natural-log probability of each continuation token, in order.
    """

    input_tokens: list[int] | None = None
    input_str: str | None = None
    continuation_tokens: list[int] | None = None
    continuation_str: str | None = None
    logprobs: list[float] | None = None


@dataclass
class KeepKVTask(Task):
    """Tells a worker which KV its request can still use. The latest such task of a request holds, until it ends.

    The worker frees other cached KV that no other request has used. The KV of these sequences ages like all KV: where
    it was kept longer, searches computed more tokens anew (docs/engine_memory.md).

    Attributes:
        sequences: Token ids of each sequence that a later task of the request may begin with.
    """

    sequences: list[list[int]] = field(default_factory=list)


@dataclass
class CompareTask(Task):
    """Which of these answers are equal.

    Attributes:
        answers: None stands for "no answer" and equals nothing.
        pairs: Indices of the answers that are to be compared with each other; None groups all answers.
        verdicts: Result, where there are pairs: one for each. A worker may leave `classes` instead.
        classes: Result: a class number for each answer in order of first appearance, -1 for None.
        num_undetermined: Result: distinct answers that count as different from others because nothing could decide.
    """

    answers: list[str | None] = field(default_factory=list)
    pairs: list[tuple[int, int]] | None = None
    verdicts: list[Verdict] | None = None
    classes: list[int] | None = None
    num_undetermined: int | None = None


class MeaningTask(CompareTask):
    """Which of these open-ended answers mean the same."""


class FirstBranches(ParallelProcess):
    """Branches; the controller needs only some of them, those that end first.

    When enough branches have ended, or the time is over, the host cancels the others, and `has_ended` says which have
    ended by then. A cancelled branch has no output; the tokens that its worker reports are counted. TensorRT-LLM's host
    takes the step for plain branches, and waits for all of them.

    Args:
        branches: What runs side by side.
        num_needed: Branches that are enough; None: all.
        is_enough: Asked when a branch has ended; None: only the number counts.
        seconds: Time that the branches have, from now on; None has no limit.
        least: Branches that must end, though the time is over.
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
    """Tasks that the controller waits for no longer than some seconds.

    After them the host cancels the tasks that still run, and sets `is_given_up`. Such a task has no output; the tokens
    that its worker reports are counted. With 0 seconds or less nothing is run. TensorRT-LLM's host takes the step for a
    plain list, and waits for all tasks.
    """

    def __init__(self, tasks: Iterable[Task], seconds: float) -> None:
        super().__init__(tasks)
        self.seconds = seconds
        self.is_given_up = False
