"""Score finished samples, in particular by P(yes) of their texts.

A reward controller's `process` leaves one score per task in `scores`, as upstream's do; `score` runs any of them.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.controllers.base import BaseController, attributes_of
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.prompting import encode, prompt_family
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.prompts.families import PromptFamily
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, RewardTask
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.lowering import lower_verify, write_back_verify
from scaffolding_ext.protocol.meta import VERIFY, note
from scaffolding_ext.protocol.task_results import output_of
from scaffolding_ext.protocol.tasks import REWARD
from scaffolding_ext.protocol.worker import WorkerTag, tag_name
from scaffolding_ext.request.program import record


def prepare(controller: Controller | None, task: GenerationTask) -> None:
    """Make a task's samples bring what a reward controller reads; a foreign one reads only texts."""
    if isinstance(controller, BaseController):
        controller.prepare(task)


def reads_logprobs(controller: Controller | None) -> bool:
    return controller is not None and attributes_of(controller).needs.num_logprobs > 0


def score(controller: Controller, tasks: list[GenerationTask]) -> ControllerGenerator:
    """Score finished tasks with a reward controller; return the scores in order."""
    judge = controller.clone()
    yield from judge.process(tasks)
    scores = getattr(judge, "scores", None)
    if scores is None or len(scores) != len(tasks):
        found = "none" if scores is None else str(len(scores))
        raise NoOutputError(
            f"{type(controller).__name__} left {found} of {len(tasks)} scores; process() of a reward controller must "
            "put a score for each task into its attribute `scores`"
        )
    return checked_scores(type(controller).__name__, scores)


def checked_scores(name: str, scores: Iterable[Any]) -> list[float]:
    """The scores as finite numbers; NoOutputError names the first sample whose score is none."""
    found = []
    for number, value in enumerate(scores):
        if not isinstance(value, numbers.Real) or not math.isfinite(value):
            raise NoOutputError(f"{name} gave sample {number} the score {value!r}; a score is a finite number")
        found.append(float(value))
    return found


class RewardController(BaseController):
    """Scores each solution by P(yes), the model's probability of calling it correct.

    A worker that serves upstream's `RewardTask` leaves the score in `custom_output_params["reward"]`. Any other is
    asked for a verdict, natively (`VerifyTask`) or by one generated token.

    Args:
        verdict: Text after the solution that asks for the verdict; None takes that of the model's prompt family.
        yes: The affirmative verdict; its first token counts.
        no: The negative verdict; its first token counts.
        worker_tag: The worker that judges: `"reward"`, or `"generation"` for the model that wrote the solution.
        prompting: The prompting of a judging model whose tokenizer is not the request's; solutions are then sent in the
            judge's token ids.

    Attributes:
        scores: P(yes) of each task of the last `process`, in [0, 1]; of a `RewardTask`, the worker's score.
    """

    def __init__(
        self,
        verdict: str | None = None,
        *,
        yes: str = "YES",
        no: str = "NO",
        worker_tag: str = WorkerTag.REWARD.value,
        prompting: Prompting | None = None,
    ) -> None:
        super().__init__()
        if not yes or not no or yes == no:
            raise ConfigError(f"yes is {yes!r} and no is {no!r}; give two different words", "yes")
        self.verdict = verdict
        self.yes = yes
        self.no = no
        self.worker_tag = WorkerTag(require.one_of("worker_tag", str(worker_tag), [tag.value for tag in WorkerTag]))
        self.needs = Needs(tags=(self.worker_tag,), sends_ids=True)
        self.judge_prompting = prompting
        self.scores: list[float] | None = None

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        if self.can_serve(self.worker_tag, RewardTask):
            self.scores = yield from self._rewards(tasks)
        else:
            question = self._family().verdict if self.verdict is None else self.verdict
            verdicts = yield from self._verdicts(tasks, [[output_of(task) + question] for task in tasks])
            self.scores = [values[0] for values in verdicts]
        record("reward", scores=self.scores)

    def _rewards(self, tasks: Sequence[GenerationTask]) -> ControllerGenerator:
        asked = []
        for task in tasks:
            ids = None
            if self.judge_prompting is None and task.input_tokens is not None and task.output_tokens is not None:
                ids = task.input_tokens + task.output_tokens
            reward = RewardTask(input_tokens=ids, input_str=f"{task.input_str or ''}{output_of(task)}")
            reward.worker_tag = self.worker_tag
            note(reward, purpose=VERIFY)
            asked.append(reward)
        yield asked
        values = [(reward.custom_output_params or {}).get(REWARD) for reward in asked]
        if any(value is None for value in values):
            raise NoOutputError(
                f"the worker {self.worker_tag.value!r} left no custom_output_params[{REWARD!r}] in a RewardTask; it "
                "failed silently, or it serves RewardTask in another way"
            )
        return values

    def _verdicts(self, tasks: Sequence[GenerationTask], texts: Sequence[Sequence[str]]) -> ControllerGenerator:
        """P(yes) for each text of each task, in one batch.

        Args:
            texts: For each task, solutions or beginnings of solutions, each with its question.
        """
        yes, no = first_tokens(self.yes, self.no, self._ids)
        branches = [
            [*self._prompt_ids(task), *self._ids(text)] for task, own in zip(tasks, texts, strict=True) for text in own
        ]
        task = VerifyTask(worker_tag=self.worker_tag, branches=branches, yes_token=yes, no_token=no)
        yield from ask_verdicts(self, [task])
        values = iter(task.scores or ())
        return [[next(values) for _ in own] for own in texts]

    def _family(self) -> PromptFamily:
        return prompt_family() if self.judge_prompting is None else self.judge_prompting.family

    def _prompt_ids(self, task: GenerationTask) -> list[int]:
        if self.judge_prompting is None and task.input_tokens is not None:
            return list(task.input_tokens)
        return self._ids(task.input_str or "")

    def _ids(self, text: str) -> list[int]:
        ids = encode(text) if self.judge_prompting is None else self.judge_prompting.encode(text)
        if ids is None:
            raise ConfigError(
                f"{type(self).__name__} needs a tokenizer to read verdicts with: set the stack's prompting, or give "
                "it the judging model's as `prompting`",
                "prompting",
            )
        return ids


def first_tokens(yes: str, no: str, encode: Callable[[str], list[int]]) -> tuple[int, int]:
    first, other = encode(yes)[0], encode(no)[0]
    if first == other:
        raise ConfigError(f"{yes!r} and {no!r} begin with the same token; give words that differ in their first", "yes")
    return first, other


def ask_verdicts(controller: BaseController, tasks: Sequence[VerifyTask]) -> ControllerGenerator:
    """Have a worker serve verify tasks in one batch; if it cannot, lower them, and record that in the trace."""
    tag = WorkerTag(tag_name(tasks[0].worker_tag))
    if controller.can_serve(tag, VerifyTask):
        yield list(tasks)
    else:
        record("fallback", task="VerifyTask", to="GenerationTask", reason="the worker does not serve it")
        lowered = [lower_verify(task) for task in tasks]
        yield [piece for pieces in lowered for piece in pieces]
        for task, pieces in zip(tasks, lowered, strict=True):
            write_back_verify(task, pieces)
    if any(task.scores is None for task in tasks):
        raise NoOutputError(f"the worker {tag.value!r} left no scores in a VerifyTask; read its log")
