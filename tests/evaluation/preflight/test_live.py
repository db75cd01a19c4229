"""A pre-flight of stacks that really run: the arms, their tokens by role, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.preflight.arms import DRAFT_ALONE, TARGET_ALONE
from scaffolding_ext.evaluation.preflight.live import SAMPLES_ALONE, RunArms, run_arms
from scaffolding_ext.evaluation.preflight.worth import find
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.stack.load import load_config

pytest.importorskip("torch")


def flown(source: str, overrides: list[str], num_questions: int = 2) -> RunArms:
    ticks = itertools.count()
    return run_arms(
        load_config(source, overrides),
        load_dataset("tinylm:held_out", num_samples=num_questions),
        alphas=[0.5],
        num_chains=2,
        clock=lambda: float(next(ticks)),
        say=lambda message: None,
    )


@pytest.mark.slow
def test_the_arms_of_a_draft_and_a_target() -> None:
    limits = ["controller.args.max_tokens=200", "controller.args.max_turns=3"]
    run = flown("configs:conformal_draft_target", limits)
    arms = {arm.name: arm for arm in run.arms}
    assert list(arms) == [DRAFT_ALONE, "draft/target 0.5", TARGET_ALONE]
    assert all(chain.num_target == 0 < chain.num_draft for chain in arms[DRAFT_ALONE].chains)
    assert all(chain.num_scored == chain.num_draft for chain in arms[DRAFT_ALONE].chains)
    assert all(chain.verdict is not None for chain in arms[DRAFT_ALONE].chains)
    assert any(chain.num_target for chain in arms["draft/target 0.5"].chains)
    assert all(chain.num_draft == chain.num_scored == 0 < chain.num_target for chain in arms[TARGET_ALONE].chains)
    found = find(run.arms, run.price, [0.5])
    assert {each.name.partition(",")[0] for each in found.forecasts} == {*arms, "router"}


@pytest.mark.slow
def test_the_samples_of_a_judged_vote() -> None:
    reward: list[Any] = [
        "controller.args.reward_controller={type: RewardController, args: {worker_tag: generation}}",
        "controller.args.generation_controller.args.sampling_params.max_tokens=100",
    ]
    run = flown("configs:majority_vote", reward)
    (arm,) = run.arms
    assert arm.name == SAMPLES_ALONE
    assert all(chain.verdict is not None and chain.confidence is not None for chain in arm.chains)
    assert find(run.arms, run.price, []).skip_gate is not None


def test_a_stack_without_a_second_model_and_without_a_judge_is_refused() -> None:
    with pytest.raises(ConfigError, match="no second model and no judge"):
        flown("configs:native", [])


def test_one_question_is_too_few() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        flown("configs:native", [], num_questions=1)
