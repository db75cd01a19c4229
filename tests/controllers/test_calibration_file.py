"""The base of calibration files: one round trip for every kind, its origin, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import ClassVar, Literal

import pytest

import scaffolding_ext
from scaffolding_ext import plain_yaml
from scaffolding_ext.controllers.budgets.files import PlannedBudgets, TaskTypes
from scaffolding_ext.controllers.calibration_file import CalibrationFile, CalibrationWarning
from scaffolding_ext.controllers.draft_target.calibration_file import ConformalCalibration, LevelScores, TurnScores
from scaffolding_ext.controllers.tree.calibration_file import BranchingCalibration
from scaffolding_ext.errors import ConfigError

KINDS = (TaskTypes, PlannedBudgets, ConformalCalibration, BranchingCalibration)


class Made(CalibrationFile):
    command: ClassVar[str] = "tune"
    kind: Literal["made_up"] = "made_up"
    scores: list[float]


def test_a_file_holds_its_origin_and_gives_back_what_was_saved(tmp_path: Path) -> None:
    made = Made(model="m", data="questions.jsonl", fingerprint="sha256:00", date="2030-01-02", scores=[1e-9, 2.5])
    made.save(tmp_path / "made.yaml")
    assert Made.load(tmp_path / "made.yaml") == made
    assert plain_yaml.read(tmp_path / "made.yaml") == {
        "kind": "made_up",
        "version": 1,
        "package_version": scaffolding_ext.__version__,
        "model": "m",
        "data": "questions.jsonl",
        "fingerprint": "sha256:00",
        "date": "2030-01-02",
        "scores": [1e-9, 2.5],
    }


def test_another_model_is_warned_of_and_an_unknown_one_is_not() -> None:
    made = Made(model="m", scores=[])
    with pytest.warns(CalibrationWarning, match=r"the made up was made for 'm' and is used with 'n'.* tune"):
        made.check_model("n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.check_model("m")
        made.check_model(None)
        Made(scores=[]).check_model("n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: other", "kind: "),
        ("version: 2", "version: Input should be 1"),
        ("scores: [.nan]", "scores.0: "),
        ("scores: [1]\nmore: 2", "more: Extra inputs"),
        ("[]", "Input should be a valid dictionary"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_with_what_to_do(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "made.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        Made.load(path)
    assert f"{path} is no made up file of version 1 ({problem}" in str(caught.value)
    assert str(caught.value).endswith("make one: scaffolding-ext tune")


def test_every_kind_is_another_and_names_its_command() -> None:
    assert set(CalibrationFile.__subclasses__()) >= set(KINDS)
    assert len({kind.model_fields["kind"].default for kind in KINDS}) == len(KINDS)
    assert all(kind.command for kind in KINDS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("conformal_draft_target", ConformalCalibration),
        ("queue_aware_budget", PlannedBudgets),
        ("queueing_table_1", TaskTypes),
    ],
)
def test_the_files_that_ship_are_read(name: str, kind: type[CalibrationFile]) -> None:
    assert kind.load(f"configs:calibrations/{name}.yaml").data


@pytest.mark.parametrize("scores", [[], [0.5], [0.1 + 0.2, 1e-17, 3.0]])
def test_scores_are_read_back_to_the_last_digit(tmp_path: Path, scores: list[float]) -> None:
    shipped = ConformalCalibration.load("configs:calibrations/conformal_draft_target.yaml")
    turn = TurnScores(scores=scores, rate=0.5, low=None, high=None)
    made = shipped.model_copy(update={"levels": [LevelScores(alpha=0.4, turns=[turn])]})
    made.save(tmp_path / "made.yaml")
    assert ConformalCalibration.load(tmp_path / "made.yaml").levels[0].turns[0].scores == scores
