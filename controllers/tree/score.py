"""Scores of branches: token probabilities, a verdict, a reward controller, or a user's function.

A scorer is a controller so that a stack binds it to its workers. Its tasks count as verification.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers import reward
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.chain.chain import without_end_token
from scaffolding_ext.controllers.needs import Needs, refuse_worker
from scaffolding_ext.controllers.prompting import encode, longest_len, prompt_family
from scaffolding_ext.controllers.reward import ask_verdicts, first_tokens
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.gates.confidence import gate_from
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.protocol import Controller, ControllerGenerator, GenerationTask, RewardTask, Worker
from scaffolding_ext.protocol.branching import LAYER_EXIT, LayerExit, VerifyTask
from scaffolding_ext.protocol.meta import VERIFY, note
from scaffolding_ext.protocol.tasks import REWARD
from scaffolding_ext.protocol.worker import WorkerTag, declared, worker_for
from scaffolding_ext.registry import controllers
from scaffolding_ext.request.program import record

Part = Literal["step", "chain"]


class Scorer(BaseController):
    """Scores branches.

    Attributes:
        is_free: Needs no worker.
        needs: `num_logprobs` is the number read at each of the branches' tokens.
    """

    needs = Needs(tags=())
    is_free = False

    def prepare(self, prompt: GenerationTask) -> None:
        """Set the prompt's sampling fields so that its branches bring the data that scores need."""

    def reserved(self) -> int:
        """Return the tokens that must fit into the worker's context after a branch."""
        return 0

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        """Set each branch's `score`, and its `weight` if it is not 1."""
        raise TypeError(f"{type(self).__name__} must implement score()")


class LogprobScorer(Scorer):
    """The geometric mean of the probabilities of a branch's tokens.

    Args:
        of: `"chain"`: all tokens from the root on; `"step"`: the tokens of the branch's step.
    """

    needs = Needs(tags=(), num_logprobs=1)
    is_free = True

    def __init__(self, of: Part = "chain") -> None:
        super().__init__()
        self.of: Part = require.one_of("of", of, get_args(Part))

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        for branch in branches:
            own = branch.own_logprobs if self.of == "step" else branch.known_logprobs()
            branch.score = math.exp(math.fsum(own) / len(own)) if own else 0.0
        yield from ()


class VerdictScorer(Scorer):
    """P(yes) for a question appended to each branch; the worker that wrote the branch reuses its KV.

    Args:
        question: Asks for the verdict; None takes the prompt family's.
        yes: The affirmative verdict; its first token counts.
        no: The negative verdict; its first token counts.
        layer_exit: Condition for reading a verdict before the last layer: `{max_entropy, max_change, min_layer}`, or
            false for never. None takes the calibration's exit that preserves the decisions, true the paper's median
            rule. A worker that cannot stop at a layer is refused.
        is_about_steps: Ask the family's question about a step instead of the one about the answer.
        weighs_confidence: Multiply a verdict by the square root of the branch's confidence. None: only in a
            `KVShareBranchingController`.

    Reference:
        RKSC: "Is this answer correct? YES or NO", and the softmax over the two first tokens.
    """

    def __init__(
        self,
        question: str | None = None,
        yes: str = "YES",
        no: str = "NO",
        layer_exit: LayerExit | Mapping[str, Any] | bool | None = None,
        is_about_steps: bool = False,
        weighs_confidence: bool | None = None,
    ) -> None:
        super().__init__()
        self.question = question
        self.yes, self.no = yes, no
        self._given_exit, self._given_weight = layer_exit, weighs_confidence  # `completed` reads what they leave open
        self.layer_exit = None if layer_exit is True else gate_from("layer_exit", LayerExit, layer_exit)
        self.is_about_steps = is_about_steps
        self._weigh(bool(weighs_confidence))

    def completed(
        self, layer_exit: LayerExit | None, median_exit: LayerExit | None, weighs_confidence: bool
    ) -> VerdictScorer:
        """Copy with a calibration's exits and the weight, if the arguments leave them open."""
        twin = copy.copy(self)
        if self._given_exit is None:
            twin.layer_exit = layer_exit
        elif self._given_exit is True:
            twin.layer_exit = median_exit
        if self._given_weight is None:
            twin._weigh(weighs_confidence)
        return twin

    def _weigh(self, weighs_confidence: bool) -> None:
        self.weighs_confidence = weighs_confidence
        self.needs = Needs(num_logprobs=int(weighs_confidence), sends_ids=True)

    def bind(self, workers: Mapping[Any, Worker]) -> None:
        """Refuse a layer exit that the worker cannot serve, or that lacks its calibration."""
        super().bind(workers)
        if self._given_exit is True and self.layer_exit is None:
            raise ConfigError(
                "is true, the paper's median rule, which needs a calibration of this model: run "
                "scaffolding-ext calibrate branching and set calibration, or give {max_entropy, max_change}",
                "scorer.args.layer_exit",
            )
        tag = WorkerTag.GENERATION
        worker: Any = worker_for(workers, tag)
        can_leave = self.can_serve(tag, VerifyTask) and LAYER_EXIT not in declared(worker).refused
        if self.layer_exit is not None and not can_leave:
            refuse_worker(worker, tag, "stop at a layer (layer_exit)", LAYER_EXIT, type(self).__name__)

    def reserved(self) -> int:
        return longest_len(self._text())

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        yes, no = first_tokens(self.yes, self.no, _ids)
        question = _ids(self._text())
        groups = [list(group) for _, group in itertools.groupby(branches, key=lambda branch: branch.depth)]
        tasks = [
            VerifyTask(
                worker_tag=WorkerTag.GENERATION,
                branches=[[*_written(branch), *question] for branch in group],
                yes_token=yes,
                no_token=no,
                layer_exit=self.layer_exit,
                depth=group[0].depth,
            )
            for group in groups
        ]
        yield from ask_verdicts(self, tasks)
        for task, group in zip(tasks, groups, strict=True):
            layers: Sequence[int | None] = task.exit_layers or [None] * len(group)
            for branch, value, layer in zip(group, task.scores or (), layers, strict=True):
                branch.score, branch.exit_layer = value, layer
            record("verify", scores=task.scores, exit_layers=task.exit_layers)
        if self.weighs_confidence:
            _weigh(branches)

    def _text(self) -> str:
        if self.question is not None:
            return self.question
        return prompt_family().step_verdict if self.is_about_steps else prompt_family().verdict


class ControllerScorer(Scorer):
    """Scores of a reward controller for the branches' texts: a reward model, a verdict, or steps of a solution.

    `ProcessRewardController` gives the last step's score, the product, the minimum, or (with `max_steps: 1`) one
    verdict on the whole prefix.

    Args:
        controller: Its `process` leaves one score per task in its attribute `scores`.
    """

    registries: ClassVar = {"controller": controllers}

    def __init__(self, controller: Controller) -> None:
        super().__init__()
        self.controller = controller

    def prepare(self, prompt: GenerationTask) -> None:
        reward.prepare(self.controller, prompt)

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        tasks = []
        for branch in branches:
            task = branch.prompt
            task.output_str, task.output_tokens = branch.chain.text, branch.chain.prefix.token_ids
            task.logprobs = branch.chain.prefix.logprobs or task.logprobs
            tasks.append(task)
        scores = yield from reward.score(self.controller, tasks)
        for branch, value in zip(branches, scores, strict=True):
            branch.score = value


class CheckerScorer(Scorer):
    """Score of a branch by a user's function: tests of code, an exact answer, a rule on steps.

    The worker `reward`, a `CheckWorker`, calls the function in processes, and kills those that overrun.

    Args:
        overrun: Score of a branch whose check overran; None makes an overrun an error.
    """

    needs = Needs(tags=(WorkerTag.REWARD,))

    def __init__(self, overrun: float | None = 0.0) -> None:
        super().__init__()
        self.overrun = None if overrun is None else require.number("overrun", overrun)

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        asked = []
        for branch in branches:
            task = RewardTask(input_str=f"{branch.prompt.input_str or ''}{branch.chain.text}")
            task.worker_tag = WorkerTag.REWARD
            task.custom_input_params = {
                "prompt": branch.root.input_str or "",
                "text": branch.chain.text,
                "has_ended": branch.is_whole,
            }
            note(task, purpose=VERIFY)
            asked.append(task)
        yield asked
        overran = []
        for branch, task in zip(branches, asked, strict=True):
            results = task.custom_output_params or {}
            if results.get("overran"):
                overran.append(branch.path)
            value = self.overrun if results.get("overran") else results.get(REWARD)
            if value is None:
                raise NoOutputError(
                    f"the checker gave no score of the branch {branch.path}: it overran its deadline, or the worker "
                    "'reward' is no CheckWorker and leaves no custom_output_params['reward']"
                )
            branch.score = float(value)
        record("check", scores=[branch.score for branch in branches], overran=overran)


class RandomScorer(Scorer):
    """A random score in [0, 1): the baseline that separates the gain of the tree from that of its scores."""

    is_free = True

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        for branch in branches:
            path = [number % 2**32 for number in branch.path]  # a look-ahead's path ends in -1
            branch.score = float(np.random.default_rng((branch.prompt.seed or 0, *path)).random())
        yield from ()


def adapted_scorer(given: Any) -> Scorer | None:
    return ControllerScorer(given) if isinstance(given, Controller) else None


def _weigh(branches: Sequence[Branch]) -> None:
    for branch in branches:
        branch.weight = math.sqrt(branch.confidence)


def _written(branch: Branch) -> list[int]:
    prompt, ids = branch.prompt.input_tokens, branch.chain.prefix.token_ids
    if prompt is None or ids is None:
        raise _no_tokenizer()
    return [*prompt, *(without_end_token(ids) if ids and branch.is_whole else ids)]


def _ids(text: str) -> list[int]:
    ids = encode(text)
    if ids is None:
        raise _no_tokenizer()
    return ids


def _no_tokenizer() -> ConfigError:
    return ConfigError(
        "is 'verdict', which needs token ids: set the stack's prompting, or score branches by "
        "'mean_logprob' or a reward controller",
        "scorer",
    )
