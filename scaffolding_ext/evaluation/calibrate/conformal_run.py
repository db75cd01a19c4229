"""Runs a conformal calibration: the chains of a stack's draft/target controller, on the prompts of a dataset."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.controllers.base import attributes_of
from scaffolding_ext.controllers.draft_target.calibration_file import (
    ConformalCalibration,
    LevelScores,
    Source,
    TurnScores,
    fingerprints,
)
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.calibrate.calibration_chains import (
    CalibrateDraftTargetController,
    CalibratingRule,
    CalibrationTurn,
    turns_in,
)
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol.worker import WorkerTag, model_of, worker_for
from scaffolding_ext.stack.build import build_stack, check_stack
from scaffolding_ext.stack.config import ComponentConfig, StackConfig
from scaffolding_ext.stats.intervals import Interval, paired_bootstrap
from scaffolding_ext.stats.resampling import checked_values


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
            not used.
        prompts: The questions, at least one.
        alphas: Levels, in (0, 1); each has chains of its own, since later turns depend on the level.
        source: `"online"` for the questions to be answered, `"held_out"` for others.
        num_turns: Turns to calibrate; 1 is the paper's, None takes the controller's `max_turns`.
        seed: Of the chains.

    Raises:
        ConfigError: The stack's controller is another, or an argument is wrong.
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


def _uncalibrated(config: StackConfig, alpha: float) -> StackConfig:
    """The stack at a level, with a controller that needs no calibration."""
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


class Rate(NamedTuple):
    """A share of decisions, and its 95 % interval from resampling whole questions; None without several questions."""

    rate: float
    interval: Interval | None


def realised_rate(
    fired: npt.ArrayLike, questions: npt.ArrayLike, rng: np.random.Generator, num_resamples: int = 2_000
) -> Rate:
    """The share of decisions that fired. Scores of one question are alike, so a binomial interval would be too narrow.

    Raises:
        ValueError: An entry is neither 0 nor 1, or `questions` has another length.
    """
    values = checked_values("fired", fired)
    if not np.isin(values, (0.0, 1.0)).all():
        raise ValueError("fired has an entry that is neither 0 nor 1; give the decisions, not the p-values.")
    if len(np.unique(questions)) < 2:
        return Rate(float(values.mean()), None)
    found = paired_bootstrap(values, np.zeros_like(values), questions, rng=rng, num_resamples=num_resamples)
    return Rate(found.value, Interval(found.low, found.high))
