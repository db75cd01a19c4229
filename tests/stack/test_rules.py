"""Every allocation rule by its name alone: in a stack file, in Python, and in the file that a calibration leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext import plain_yaml
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.certaindex import Threshold
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.skyline import Curve, DynamicSkyline, InitialStepSkyline
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.registry import allocation_rules
from scaffolding_ext.stack.build import check_stack, load_stack
from scaffolding_ext.stack.load import load_config

CURVE = Curve((1.0, 0.5), (3, 6))
NEEDED = {
    "LengthThreshold": {"max_mean_length": 100.0},
    "InitialStepSkyline": {"knob": 3, "curve": {"certaindex": [1.0], "num_samples": [3]}},
    "DynamicSkyline": {"knobs": [3], "curves": [{"certaindex": [1.0], "num_samples": [3]}]},
}
RULES = list(allocation_rules.names())
REWARDED = (Threshold("max_reward", 0.99),)


class Judge(BaseController):
    """Gives every sample the same reward."""

    scores: list[float]

    def process(self, tasks: list[Any], **kwargs: Any) -> Any:
        self.scores = [0.5] * len(tasks)
        yield []


def stack_file(folder: Path, allocation: object, **args: object) -> Path:
    """A stack whose four samples all give the same answer."""
    stack = {
        "controller": {
            "type": "MajorityVoteController",
            "args": {
                "default_sample_num": 4,
                "allocation": allocation,
                "generation_controller": {"type": "NativeGenerationController", "args": {}},
                **args,
            },
        },
        "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": r"so \boxed{7}"}}},
        "prompt": None,
    }
    path = folder / "stack.yaml"
    path.write_text(plain_yaml.dump(stack), encoding="utf-8")
    return path


def num_samples(llm: ScaffoldingLlm) -> int:
    with llm:
        result = llm.generate("question")
    assert result.answer == "7"
    (voted,) = [event["num_samples"] for event in result.program.trace if event["event"] == "vote"]
    return int(voted)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_runs_from_a_stack_file(tmp_path: Path, name: str) -> None:
    path = stack_file(tmp_path, {"type": name, "args": NEEDED.get(name, {})})
    rule = check_stack(load_config(path)).allocation
    assert allocation_rules.name_of(type(rule)) == name
    expected = MajorityVoteController(NativeGenerationController(), 4, allocation=rule)
    assert type(expected.allocation) is allocation_rules.resolve(name)
    assert 1 <= num_samples(load_stack(path)) <= 4


@pytest.mark.parametrize(
    "rule",
    [
        LeaderChange(miss=0.03, concentration=2.5, give_up=True, leap=1.5),
        StaticThreshold(knob=3, reward_thresholds=REWARDED),
        ThresholdEvery(threshold=0.85, reward_thresholds=REWARDED),
        InitialStepSkyline(knob=3, curve=CURVE),
        DynamicSkyline(knobs=(3, 5), curves=(CURVE, CURVE)),
    ],
    ids=lambda rule: type(rule).__name__,
)
def test_a_rule_is_the_same_from_json_and_a_stack_file(tmp_path: Path, rule: AllocationRule) -> None:
    policy = {"type": type(rule).__name__, "args": rule.settings()}
    assert type(rule)(**json.loads(json.dumps(rule.settings()))) == rule
    judge = {"reward_controller": {"$ref": "judge"}}
    path = stack_file(tmp_path, policy, **judge)
    assert check_stack(load_config(path), {"judge": Judge()}).allocation == rule


def test_reward_thresholds_of_a_stack_file_are_read_when_the_vote_is_counted(tmp_path: Path) -> None:
    def drawn(at_least: float) -> int:
        thresholds = [{"measure": "mean_reward", "at_least": at_least}]
        rule = {"type": "StaticThreshold", "args": {"knob": 2, "reward_thresholds": thresholds}}
        path = stack_file(tmp_path, rule, reward_controller={"$ref": "judge"})
        return num_samples(load_stack(path, references={"judge": Judge()}))

    assert drawn(0.4) == 2  # all answers agree, and the rewards of 0.5 reach it
    assert drawn(0.6) == 4


@pytest.mark.parametrize(
    "thresholds",
    [
        [{"measure": "luck", "at_least": 0.5}],
        [{"measure": "max_reward", "at_least": 2}],
    ],
)
def test_wrong_reward_thresholds_are_refused_before_anything_runs(tmp_path: Path, thresholds: Any) -> None:
    rule = {"type": "ThresholdEvery", "args": {"reward_thresholds": thresholds}}
    with pytest.raises(ConfigError, match=r"^controller\.args\.allocation\.args\.reward_thresholds: is "):
        check_stack(load_config(stack_file(tmp_path, rule)))


def test_a_rule_that_reads_rewards_needs_someone_who_gives_them(tmp_path: Path) -> None:
    rule = StaticThreshold(reward_thresholds=REWARDED)
    allocation = {"type": "StaticThreshold", "args": rule.settings()}
    with pytest.raises(ConfigError, match=r"allocation: reads rewards, which needs a reward_controller"):
        check_stack(load_config(stack_file(tmp_path, allocation)))
