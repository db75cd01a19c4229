"""Every allocation rule by its name alone: in a stack file, in Python, and in the file that a calibration leaves."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

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
from scaffolding_ext.registry import Registry, allocation_rules, controllers
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


@pytest.mark.parametrize("name", [name for name in RULES if name not in NEEDED])
def test_a_rule_that_needs_nothing_is_named_alone(tmp_path: Path, name: str) -> None:
    rule = check_stack(load_config(stack_file(tmp_path, name))).allocation
    assert rule == allocation_rules.build(name)
    assert MajorityVoteController(NativeGenerationController(), allocation=name).allocation == rule


@pytest.mark.parametrize(
    ("name", "needed", "accepted"),
    [
        ("InitialStepSkyline", "'knob', 'curve'", "knob, curve"),
    ],
)
def test_a_rule_that_needs_something_says_what(tmp_path: Path, name: str, needed: str, accepted: str) -> None:
    said = f"{name} needs {needed}; it accepts: {accepted}; give {{type: {name}, args: {{...}}}}"
    with pytest.raises(ConfigError) as caught:
        MajorityVoteController(NativeGenerationController(), allocation=name)
    assert (caught.value.key, caught.value.message) == ("allocation", said)
    with pytest.raises(ConfigError) as caught:
        check_stack(load_config(stack_file(tmp_path, name)))
    assert (caught.value.key, caught.value.message) == ("controller.args.allocation", said)


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
        [{"measure": "max_reward"}],
        [0.5],
    ],
)
def test_wrong_reward_thresholds_are_refused_before_anything_runs(tmp_path: Path, thresholds: Any) -> None:
    rule = {"type": "ThresholdEvery", "args": {"reward_thresholds": thresholds}}
    with pytest.raises(ConfigError, match=r"^controller\.args\.allocation\.args\.reward_thresholds: is "):
        check_stack(load_config(stack_file(tmp_path, rule)))


@pytest.mark.parametrize(
    ("name", "args", "key"),
    [
        ("LeaderChange", {"miss": 1.5}, "miss"),
        ("DynamicSkyline", {"knobs": [3, 2], "curves": [{"certaindex": [1], "num_samples": [3]}] * 2}, "knobs"),
    ],
)
def test_a_setting_out_of_range_is_found_by_its_key(tmp_path: Path, name: str, args: Any, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^controller\.args\.allocation\.args\.{key}: is "):
        check_stack(load_config(stack_file(tmp_path, {"type": name, "args": args})))


def test_a_rule_that_reads_rewards_needs_someone_who_gives_them(tmp_path: Path) -> None:
    rule = StaticThreshold(reward_thresholds=REWARDED)
    allocation = {"type": "StaticThreshold", "args": rule.settings()}
    with pytest.raises(ConfigError, match=r"allocation: reads rewards, which needs a reward_controller"):
        check_stack(load_config(stack_file(tmp_path, allocation)))


def test_what_is_unknown_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="allocation: unknown allocation rule 'Luck'"):
        MajorityVoteController(NativeGenerationController(), allocation="Luck")
    with pytest.raises(ConfigError, match="allocation: is 3; give an allocation rule"):
        MajorityVoteController(NativeGenerationController(), allocation=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="Curtailment takes no such argument; it accepts: leap"):
        check_stack(load_config(stack_file(tmp_path, {"type": "Curtailment", "args": {"luck": 1}})))


class Tossing(NativeGenerationController):
    """A controller of others, whose arguments are called as some of ours are."""

    registries: ClassVar = {"allocation": Registry("coin", {"fair": "fractions:Fraction"}, "nobody")}

    def __init__(self, allocation: Any, rule: Any) -> None:
        super().__init__()
        self.allocation, self.rule = allocation, rule


def test_whose_component_an_argument_is_says_the_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(controllers._targets, "Tossing", Tossing)
    own = {"type": "fair", "args": {"numerator": 1, "denominator": 2}}
    stack = plain_yaml.read(stack_file(tmp_path, None))
    stack["controller"] = {
        "type": "Tossing",
        "args": {"allocation": own, "rule": {"type": "NativeGenerationController"}},
    }
    built = check_stack(load_config(stack))
    assert built.allocation == Fraction(1, 2)
    assert isinstance(built.rule, NativeGenerationController)
