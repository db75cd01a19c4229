"""Tasks and steps missing in Scaffolding's protocol: scores, comparisons, and steps that are cut short.

Plain generation uses the protocol's task. `lowering` rewrites other tasks as plain generation if it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

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
    may begin with) ages like all KV: when it was kept longer, searches recomputed more tokens (docs/architecture.md).
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


class RollingBranches(ParallelProcess):
    """Branches that keep running while their controller does other work; it yields the step again to wait for them.

    The host starts the branches in `sub_gens`, with their `branch_paths`, and empties both lists. It returns when a
    branch has ended since the last yield, when `wake` was called, or when the time is over. Branches that still run are
    cancelled when the step is yielded with `is_closing`, and when the generator that yielded it ends. A cancelled
    branch has no output; the tokens that its worker reports are counted before the host returns. TensorRT-LLM's host
    does not know the step: ask `Program.can_roll`.

    Attributes:
        failures: Errors of failed branches, by the last number of the branch's path.
        seconds: Time limit of the next wait; None has no limit.
        wake: Set by the host: makes a wait return.
    """

    def __init__(self) -> None:
        super().__init__([], [], [])
        self.branch_paths: list[tuple[int, ...]] = []
        self.failures: dict[int, Exception] = {}
        self.seconds: float | None = None
        self.is_closing = False
        self.wake: Callable[[], object] = lambda: None


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
