"""Collects the scores of calibration chains, all questions turn by turn, in one request.

All chains of a turn are scored before any goes on. Each is ranked among the others, as a new chain will be, and is
taken over where its p-value says so: then all chains of a turn lived under the same rule.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from scaffolding_ext.controllers.base import BaseController, finish, side_by_side
from scaffolding_ext.controllers.draft_target.chain import DraftTargetChain
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.draft_target.conformal_rule import ConformalRule
from scaffolding_ext.controllers.draft_target.p_values import leave_one_out_p_values
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.request.program import next_seed, record


class CalibrationTurn(NamedTuple):
    """One turn of all calibration chains that reached it."""

    questions: list[int]
    scores: list[float]
    taken_over: list[bool]


def turns_in(trace: Sequence[Mapping[str, Any]]) -> list[CalibrationTurn]:
    """The turns that a request of `CalibrateDraftTargetController` has recorded in its trace."""
    events = [event for event in trace if event["event"] == "calibrated"]
    return [CalibrationTurn(*(event[name] for name in CalibrationTurn._fields)) for event in events]


class CalibratingRule(ConformalRule):
    """The rule of calibration chains, which are ranked among each other; it makes no promise, so none is in doubt."""

    def doubt(self, max_turns: int, prompt: str | None = None) -> str | None:
        return None


class CalibrateDraftTargetController(BaseController):
    """Runs the chains of many questions in step and records their scores."""

    needs = Needs(tags=())

    def __init__(
        self, controller: ConformalDraftTargetController, prompts: Sequence[str], num_turns: int | None = None
    ) -> None:
        super().__init__()
        if not isinstance(controller.rule, ConformalRule):
            raise ConfigError(
                f"is a {type(controller.rule).__name__}; only a ConformalRule can be calibrated: set rule to conformal",
                "rule",
            )
        self.rule = CalibratingRule(controller.rule.alpha, "conditional", ties=controller.rule.ties)
        self.controller = copy.copy(controller)
        self.controller.rule = self.rule
        self.prompts = list(prompts)
        self.num_turns = num_turns or controller.max_turns

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        """Run all chains; the output says how many scores there are, and the trace holds them (`turns_in`)."""
        rng = np.random.default_rng(next_seed())
        tasks = enumerate(map(self.task_of, self.prompts))
        chains = [(number, chain) for number, each in tasks for chain in self.controller.open_chains(each)]
        num_scores = turn = 0
        while chains and turn < self.num_turns:
            yield side_by_side([chain.draft() for _, chain in chains])
            scored = [(number, chain, chain.score) for number, chain in chains if chain.score is not None]
            scores = [score for _, _, score in scored]
            p_values = leave_one_out_p_values(scores, self.rule.ties, rng) if scores else np.empty(0)
            taken_over = (p_values <= self.rule.alpha).tolist()
            found = CalibrationTurn([number for number, _, _ in scored], scores, taken_over)
            record("calibrated", turn=turn, **found._asdict())
            num_scores, turn = num_scores + len(scores), turn + 1
            if turn < self.num_turns and scored:
                settled = zip(scored, taken_over, strict=True)
                yield side_by_side([self._settle(chain, taken) for (_, chain, _), taken in settled])
            chains = [(number, chain) for number, chain, _ in scored if chain.exit_reason is None]
        finish(task, f"{num_scores} scores in {turn} turns", None)

    def task_of(self, prompt: str) -> GenerationTask:
        """The task of a question, as the models read it."""
        task = GenerationTask.create_from_prompt(prompt)
        if self.prompting is not None:
            self.prompting.apply(task)
        return task

    def _settle(self, chain: DraftTargetChain, taken_over: bool) -> ControllerGenerator:
        num_tokens = yield from chain.settle(taken_over)
        if num_tokens:
            record("taken_over", num_target_tokens=num_tokens)
