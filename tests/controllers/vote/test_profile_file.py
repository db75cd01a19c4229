"""The calibration file, what it warns of, and the command that makes it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

from scaffolding_ext.cli.main import main
from scaffolding_ext.controllers.calibration_file import CalibrationWarning
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.controllers.vote.allocation.skyline import Curve, InitialStepSkyline
from scaffolding_ext.controllers.vote.profile_file import VoteProfile
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.records import Record


def calibration(**changes: object) -> VoteProfile:
    fields: dict[str, object] = {
        "model": "tinylm/target",
        "date": "2030-01-02",
        "data": "samples.jsonl",
        "fingerprint": "sha256:00",
        "max_loss": 0.005,
        "rule": LeaderChange(miss=0.05),
        "figures": {"accuracy": 0.85, "tokens": 512.5},
        "knob": 5,
        "certaindex": [1.0, 0.689082, 0.0],
    }
    return VoteProfile.of(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", [LeaderChange(miss=0.05), InitialStepSkyline(knob=2, curve=Curve((1.0, 0.0), (2, 6)))])
def test_the_file_gives_back_what_was_saved(tmp_path: Path, rule: LeaderChange | InitialStepSkyline) -> None:
    saved = calibration(rule=rule)
    saved.save(tmp_path / "policy.yaml")
    loaded = VoteProfile.load(tmp_path / "policy.yaml")
    assert loaded == saved
    assert loaded.rule == rule


def test_another_models_votes_are_warned_of_by_name() -> None:
    with pytest.warns(CalibrationWarning, match=r"'tinylm/target' and is used with 'qwen'"):
        calibration().check_model("qwen")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        calibration().check_model("tinylm/target")


def test_drift_is_measured_against_the_calibration() -> None:
    made = calibration(certaindex=[1.0] * 50)
    assert not made.drift([1.0] * 30).drifted
    assert made.drift([0.0] * 30).drifted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "chain_policy"}, "is no vote profile file of version 1 .kind: "),
        ({"version": 2}, "is no vote profile file of version 1 .version: "),
        ({"policy": {"type": "Luck", "args": {}}}, "unknown allocation rule 'Luck'"),
        ({"knob": None}, None),
    ],
)
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, change: dict[str, object], message: str | None) -> None:
    path = tmp_path / "policy.yaml"
    calibration().save(path)
    document = YAML(typ="safe").load(path.read_text())
    if message is None:
        del document["knob"]
        message = "knob: Field required"
    YAML(typ="safe").dump({**document, **change} if "knob" in document else document, path)
    with pytest.raises(ConfigError, match=message) as caught:
        VoteProfile.load(path)
    assert "policy.yaml" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.yaml: No such file"):
        VoteProfile.load(tmp_path / "none.yaml")


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """24 questions of 6 samples; a sample is right with a chance of .5 to .95."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(24):
        right = rng.random(6) < 0.5 + 0.45 * (number % 4) / 3
        answers = np.where(right, 7, rng.integers(1, 5, 6))
        drawn = [{"text": f"so \\boxed{{{answer}}}", "num_tokens": int(rng.integers(50, 90))} for answer in answers]
        rows.append({"id": f"q{number}", "answer": "7", "samples": drawn})
    path = tmp_path / "samples.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_the_command_writes_the_policy_and_the_picture(samples: Path, tmp_path: Path) -> None:
    policy, plot = tmp_path / "policy.yaml", tmp_path / "policy.png"
    arguments = ["--model", "m", "--max_loss", "0.02", "--num_orders", "2", "--json"]
    command = ["calibrate", "certaindex", str(samples), *arguments, "--output_path", str(policy)]
    run = CliRunner().invoke(main, [*command, "--plot_path", str(plot)], catch_exceptions=False)
    assert run.exit_code == 0, run.output
    document = json.loads(run.output)
    made = VoteProfile.load(policy)
    assert document["policy"]["type"] == type(made.rule).__name__
    assert made.model == "m"
    assert made.figures["tokens"] < made.figures["full_tokens"]
    assert made.figures["accuracy"] >= made.figures["full_accuracy"] - 0.02
    assert len(made.certaindex) == 24
    assert plot.stat().st_size > 0
    again = CliRunner().invoke(main, command, catch_exceptions=False)
    assert json.loads(again.output)["policy"] == document["policy"]


def test_the_command_says_what_came_of_it(samples: Path, tmp_path: Path) -> None:
    command = ["calibrate", "certaindex", str(samples), "--model", "m", "--num_orders", "1"]
    run = CliRunner().invoke(main, [*command, "--output_path", str(tmp_path / "policy.yaml")], catch_exceptions=False)
    assert run.exit_code == 0
    assert "accuracy" in run.output
    assert "of the full vote" in run.output
    assert "policy.yaml" in run.output


def vote_record(number: int, classes: list[int]) -> str:
    counts = {"decoded": 9, "prefilled": 5, "reused": 0}
    ledger = {"total": counts, "by_purpose": {"chain": counts}, "num_unmetered_tasks": 0}
    inner = {"event": "vote", "branch": [0], "seconds": 0.1, "classes": [7, 8, 9, 10]}
    trace = [inner, {"event": "vote", "branch": [], "seconds": 0.2, "classes": classes}]
    made = Record(str(number), 0, "0" * 16, "7", "7", "7", True, "equal", None, ledger, {"total": 1.0}, 0, trace, None)
    return json.dumps(made.to_json()) + "\n"


@pytest.mark.parametrize(("classes", "exit_code", "says"), [([0, 0, 0], 0, "no drift"), ([0, 1, 2], 1, "again")])
def test_later_votes_are_tested_against_the_policys(
    tmp_path: Path, classes: list[int], exit_code: int, says: str
) -> None:
    calibration(knob=3, certaindex=[1.0] * 40).save(tmp_path / "policy.yaml")
    records = tmp_path / "samples.jsonl"
    records.write_text("".join(vote_record(number, classes) for number in range(30)), encoding="utf-8")
    command = ["calibrate", "drift", str(tmp_path / "policy.yaml"), str(records)]
    run = CliRunner().invoke(main, command, catch_exceptions=False)
    assert (run.exit_code, says in run.output) == (exit_code, True)
    document = json.loads(CliRunner().invoke(main, [*command, "--json"], catch_exceptions=False).output)
    assert (document["num_votes"], document["knob"], document["drifted"]) == (30, 3, bool(exit_code))
    other = CliRunner().invoke(main, [*command, "--model", "qwen"], catch_exceptions=False)
    assert "'tinylm/target' and is used with 'qwen'" in other.stderr


def test_records_without_long_enough_votes_are_refused(tmp_path: Path) -> None:
    calibration(knob=5).save(tmp_path / "policy.yaml")
    records = tmp_path / "samples.jsonl"
    records.write_text(vote_record(0, [0, 0, 0]), encoding="utf-8")
    run = CliRunner().invoke(main, ["calibrate", "drift", str(tmp_path / "policy.yaml"), str(records)])
    assert run.exit_code == 2
    assert "holds no vote of 5 samples" in run.output


def test_unusable_samples_end_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text("{}\n")
    command = ["calibrate", "certaindex", str(path), "--model", "m", "--output_path", str(tmp_path / "policy.yaml")]
    run = CliRunner().invoke(main, command)
    assert run.exit_code == 2
    assert "give evaluation records" in run.output
    assert not (tmp_path / "policy.yaml").exists()
