"""What branches are worth: a verdict on each, the probabilities that it was written with, or another's judgement."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.chain.chunk_text import without_end_token
from scaffolding_ext.controllers.prompting import encode, prompt_family
from scaffolding_ext.controllers.reward import score
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.verdicts import ask_verdicts, first_tokens
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, ControllerGenerator
from scaffolding_ext.protocol.branching import LayerExit, VerifyTask
from scaffolding_ext.protocol.worker_tags import WorkerTag
from scaffolding_ext.request.program import record


class Scorer(ABC):
    """Gives branches their scores."""

    @abstractmethod
    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        """Work to `yield from`: afterwards each branch has its score, in [0, 1]."""


class VerdictScorer(Scorer):
    """P(yes) to a question behind each branch, asked of the worker that wrote it: it reads the question alone.

    What was written is given as the very tokens that were written, so that all of their KV is reused.

    Args:
        controller: Knows what the worker can do.
        question: Asks for the verdict; None takes that of the model's prompt family.
        yes: The affirmative verdict; its first token counts.
        no: The negative verdict; its first token counts.
        layer_exit: When a verdict may be read before the last layer; None reads the last.

    Reference:
        RKSC: "Is this answer correct? YES or NO", and the softmax over the two first tokens.

    Deviation:
        The released verifier reads a wrong position under left padding, and cuts the question off long texts.
    """

    def __init__(
        self,
        controller: BaseController,
        question: str | None = None,
        yes: str = "YES",
        no: str = "NO",
        layer_exit: LayerExit | None = None,
    ) -> None:
        self._controller = controller
        self._question = question
        self._yes, self._no = yes, no
        self._layer_exit = layer_exit

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        yes, no = first_tokens(self._yes, self._no, _ids)
        question = _ids(prompt_family().verdict if self._question is None else self._question)
        task = VerifyTask(
            worker_tag=WorkerTag.GENERATION,
            branches=[[*_written(branch), *question] for branch in branches],
            yes_token=yes,
            no_token=no,
            layer_exit=self._layer_exit,
            depth=branches[0].depth,
        )
        yield from ask_verdicts(self._controller, [task])
        layers: Sequence[int | None] = task.exit_layers or [None] * len(branches)
        for branch, value, layer in zip(branches, task.scores or (), layers, strict=True):
            branch.score, branch.exit_layer = value, layer
        record("verify", scores=task.scores, exit_layers=task.exit_layers)


class LogprobScorer(Scorer):
    """The geometric mean of the probabilities of a branch's tokens, which came with them."""

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        for branch in branches:
            branch.score = branch.mean_probability
        yield from ()


class ControllerScorer(Scorer):
    """What a reward controller says of the branches' texts.

    Args:
        controller: As for `BestOfNController`.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        tasks = []
        for branch in branches:
            task = branch.prompt
            task.output_str, task.output_tokens = branch.chain.text, branch.chain.prefix.token_ids
            tasks.append(task)
        scores = yield from score(self._controller, tasks)
        for branch, value in zip(branches, scores, strict=True):
            branch.score = value


def _written(branch: Branch) -> list[int]:
    """The prompt and the branch as ids, without the token that ended it.

    Raises:
        ConfigError: There is no tokenizer.
    """
    prompt, ids = branch.prompt.input_tokens, branch.chain.prefix.token_ids
    if prompt is None or ids is None:
        raise _no_tokenizer()
    return [*prompt, *(without_end_token(ids) if ids else ())]


def _ids(text: str) -> list[int]:
    ids = encode(text)
    if ids is None:
        raise _no_tokenizer()
    return ids


def _no_tokenizer() -> ConfigError:
    return ConfigError(
        "is 'verdict', which is asked for in token ids: set the stack's prompting, or score branches by "
        "'mean_logprob' or a reward_controller",
        "reward",
    )
