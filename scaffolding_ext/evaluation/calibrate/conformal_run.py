"""Conformal calibration: the chains of a stack's draft/target controller on the prompts of a dataset.

All chains of a turn are scored before any continues. Each is ranked among the others, like a new chain later, and taken
over if its p-value says so; thus all chains of a turn follow the same rule.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.controllers.base import BaseController, attributes_of, finish, side_by_side
from scaffolding_ext.controllers.draft_target.calibration_file import (
    ConformalCalibration,
    LevelScores,
    Source,
    TurnScores,
    fingerprints,
)
from scaffolding_ext.controllers.draft_target.chain import DraftTargetChain
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.draft_target.conformal_rule import ONLINE, ConformalRule
from scaffolding_ext.controllers.draft_target.p_values import leave_one_out_p_values
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.worker import WorkerTag, model_of, worker_for
from scaffolding_ext.request.program import next_seed, record
from scaffolding_ext.stack.build import build_stack, check_stack
from scaffolding_ext.stack.config import ComponentConfig, StackConfig
from scaffolding_ext.stats.intervals import Interval, paired_bootstrap


class CalibrationTurn(NamedTuple):
    """One turn of all calibration chains that reached it."""

    questions: list[int]
    scores: list[float]
    taken_over: list[bool]


def turns_in(trace: Sequence[Mapping[str, Any]]) -> list[CalibrationTurn]:
    """Return the turns that a `CalibrateDraftTargetController` recorded in its trace."""
    events = [event for event in trace if event["event"] == "calibrated"]
    return [CalibrationTurn(*(event[name] for name in CalibrationTurn._fields)) for event in events]


class CalibratingRule(ConformalRule):
    """Rule of calibration chains, which are ranked among each other; it has no guarantee to doubt."""

    def coverage_warning(self, max_turns: int, prompt: str | None = None) -> str | None:
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
        """Run all chains; the output gives the number of scores, and the trace has them (`turns_in`)."""
        rng = np.random.default_rng(next_seed())
        tasks = enumerate(map(self.task_of, self.prompts))
        chains = [(number, chain) for number, each in tasks for chain in self.controller.open_chains(each)]
        num_scores = turn = 0
        while chains and turn < self.num_turns:
            yield side_by_side([self.controller.propose(chain) for _, chain in chains])
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
        task = GenerationTask.create_from_prompt(prompt)
        if self.prompting is not None:
            self.prompting.apply(task)
        return task

    def _settle(self, chain: DraftTargetChain, taken_over: bool) -> ControllerGenerator:
        num_tokens = yield from chain.settle(taken_over)
        if num_tokens:
            record("taken_over", num_target_tokens=num_tokens)


def calibrate(
    config: StackConfig,
    prompts: Sequence[str],
    alphas: Sequence[float],
    *,
    source: Source,
    num_turns: int | None = None,
    seed: int = 0,
) -> ConformalCalibration:
    """Run the calibration chains of each level and keep their scores.

    Args:
        config: A stack with a ConformalDraftTargetController as outermost controller; its coverage and calibration are
            ignored.
        prompts: The questions, at least one.
        alphas: Levels, in (0, 1); each has its own chains, because later turns depend on the level.
        source: `"online"` for the questions to be answered, `"held_out"` for others.
        num_turns: Turns to calibrate; the paper uses 1, None takes the controller's `max_turns`.

    Raises:
        ConfigError: The stack has another controller, or an argument is wrong.
    """
    levels = []
    with build_stack(_uncalibrated(config, alphas[0])) as llm:
        prompting = attributes_of(llm.prototype_controller).prompting
        for alpha in alphas:
            controller = check_stack(_uncalibrated(config, alpha))
            if not isinstance(controller, ConformalDraftTargetController):
                raise ConfigError(
                    f"is a {type(controller).__name__}; calibrate the ConformalDraftTargetController by itself",
                    "controller.type",
                )
            calibrating = CalibrateDraftTargetController(controller, prompts, num_turns)
            calibrating.prompting = prompting
            read = [calibrating.task_of(prompt).input_str or "" for prompt in prompts]
            with ScaffoldingLlm(calibrating, llm.workers, seed=seed) as calibrating_llm:
                program = calibrating_llm.generate(prompts[0], sample_id=f"alpha {alpha}").program
            rng = np.random.default_rng(seed)
            level = LevelScores(
                alpha=alpha,
                turns=[_turn_scores(turn, rng) for turn in turns_in(program.trace)],
                num_target_tokens=sum(event.get("num_target_tokens", 0) for event in program.trace),
                ledger=program.ledger.to_json(),
            )
            levels.append(level)
        models = [model_of(worker_for(llm.workers, tag)) for tag in (WorkerTag.DRAFT, WorkerTag.TARGET)]
    return ConformalCalibration(
        model=models[1],
        date=datetime.date.today().isoformat(),
        source=source,
        setting=controller.setting.of_models(*models),
        num_chains=controller.num_chains,
        seed=seed,
        questions=fingerprints(read),
        levels=levels,
    )


def calibrated_online(config: StackConfig, folder: Path) -> StackConfig:
    """Replace `calibration: online` of a stack's rule by a calibration on the run's own questions, kept in the folder.

    A file that is there already is of the same run, which goes on.
    """
    args = config.controller.args
    rule: Any = args.get("rule")
    own: Mapping[str, Any] = rule.get("args", {}) if isinstance(rule, Mapping) else args
    if own.get("calibration") != ONLINE or config.dataset is None:
        return config
    path, limit = folder / "calibration.yaml", config.evaluation.limit
    if not path.exists():
        samples = load_dataset(**config.dataset.model_dump(), limit=None if limit is None else str(limit))
        prompts = [sample.prompt for sample in samples]
        num_turns = 1 if own.get("pool") == "first_turn" else None
        alphas = [own.get("alpha", ConformalRule(coverage="conditional").alpha)]
        calibrate(config, prompts, alphas, source="online", num_turns=num_turns, seed=config.seed or 0).save(path)
    own = {**own, "calibration": str(path)}
    args = {**args, "rule": {**rule, "args": own}} if isinstance(rule, Mapping) else {**args, **own}
    return config.model_copy(update={"controller": ComponentConfig(type=config.controller.type, args=args)})


def _uncalibrated(config: StackConfig, alpha: float) -> StackConfig:
    given = config.controller.args
    own = given["rule"].get("args", {}) if isinstance(given.get("rule"), Mapping) else {}
    ties = {"ties": own["ties"]} if "ties" in own else {}
    rule = CalibratingRule(alpha, "conditional", **ties)
    args = {key: value for key, value in given.items() if key not in ("alpha", "coverage", "calibration")}
    component = ComponentConfig(type=config.controller.type, args=args | {"rule": rule})
    return config.model_copy(update={"controller": component})


def _turn_scores(turn: CalibrationTurn, rng: np.random.Generator) -> TurnScores:
    if not turn.scores:
        return TurnScores(scores=[], rate=0.0, low=None, high=None)
    rate, interval = realised_rate(turn.taken_over, turn.questions, rng)
    low, high = interval or (None, None)
    return TurnScores(scores=sorted(turn.scores), rate=rate, low=low, high=high)


def realised_rate(
    fired: npt.ArrayLike, questions: npt.ArrayLike, rng: np.random.Generator, num_resamples: int = 2_000
) -> tuple[float, Interval | None]:
    """Return the share of decisions that fired, and its 95 % interval over resampled questions, if there are several.

    Scores of one question are correlated, so a binomial interval would be too narrow.
    """
    values = np.asarray(fired, dtype=float)
    if len(np.unique(questions)) < 2:
        return float(values.mean()), None
    found = paired_bootstrap(values, np.zeros_like(values), questions, rng=rng, num_resamples=num_resamples)
    return found.value, Interval(found.low, found.high)
