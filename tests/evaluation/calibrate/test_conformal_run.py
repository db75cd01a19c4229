"""`calibrate conformal`: chains on scripted workers, the file that they leave, and a run that uses it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.controllers.draft_target.calibration_file import ConformalCalibration, fingerprint
from scaffolding_ext.evaluation.calibrate.conformal_run import realised_rate
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.stats.intervals import wilson_interval

pytestmark = pytest.mark.filterwarnings("ignore:controller.prompting is None")

WORKERS = """
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.testing import ScriptedWorker

class Draft(ScriptedWorker):
    model = "small"
    def __init__(self):
        super().__init__(lambda task: "1}" if task.input_str.endswith("{") else "d" * 99)

class Target(ScriptedWorker):
    model = "large"
    def __init__(self, model="large"):
        super().__init__(respond)
        self.model = model

def respond(task):
    if isinstance(task, ScoreTask):
        return [-(len(task.input_str) % 7) - 1.0] * len(task.continuation_str)
    return "T" * 99
"""


@pytest.fixture
def stack(tmp_path, monkeypatch):
    (tmp_path / "conformal_workers.py").write_text(WORKERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    args = {"coverage": "conditional", "draft_tokens": 5, "target_tokens": 3, "num_chains": 2, "max_turns": 3}
    document = {
        "controller": {"type": "ConformalDraftTargetController", "args": args},
        "workers": {"draft": {"type": "conformal_workers:Draft"}, "target": {"type": "conformal_workers:Target"}},
        "dataset": "data.jsonl",
        "prompt": None,
    }
    (tmp_path / "stack.yaml").write_text(json.dumps(document))
    rows = [{"id": str(i), "question": "q" * (i + 1), "answer": "1"} for i in range(6)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return "stack.yaml"


def call(*arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def calibrate(stack, *more):
    result = call("calibrate", "conformal", "--config", stack, "--alpha", "0.4", "--output_path", "made.json", *more)
    assert result.exit_code == 0, result.output
    return ConformalCalibration.load("made.json"), result.output


def errors_in(result):
    document = next(line for line in result.output.splitlines() if line.startswith("{"))
    return json.loads(document)["summary"]["errors"]


def test_it_leaves_the_scores_of_every_turn_and_what_they_depend_on(stack):
    made, output = calibrate(stack, "--alpha", "0.25", "--seed", "3")
    assert [level.alpha for level in made.levels] == [0.4, 0.25]
    assert [len(turn.scores) for turn in made.levels[0].turns] == [12, 12, 12]
    first = [float(length % 7 + 1) for length in range(1, 7) for _ in range(2)]
    assert list(made.pools(0.4)[0]) == sorted(first)
    assert all(turn.low <= turn.rate <= turn.high for turn in made.levels[0].turns)
    assert made.setting.model_dump() == {
        "draft_model": "small",
        "target_model": "large",
        "draft_tokens": 5,
        "target_tokens": 3,
        "on_reject": "resample",
        "score": "mean_nll",
    }
    assert (made.source, made.num_chains, made.seed) == ("held_out", 2, 3)
    assert fingerprint("qqq") in made.questions
    assert "0.4       0      12  0." in output


def test_a_run_takes_the_file_and_refuses_it_for_another_model_or_chunk(stack):
    calibrate(stack, "--num_turns", "2")
    marginal = ("--set", "controller.args.coverage=marginal", "--set", "controller.args.calibration=made.json")
    at_level = ("eval", "--config", stack, *marginal, "--set", "controller.args.alpha=0.4")
    result = call(*at_level, "--json")
    assert result.exit_code == 0, result.output
    result = call(*at_level, "--set", "controller.args.draft_tokens=6")
    assert result.exit_code == 2
    assert "was calibrated with draft_tokens 5, but here it is 6" in result.output
    result = call(*at_level, "--set", "workers.target.args.model=larger")
    assert result.exit_code == 2
    assert "was calibrated with target_model 'large', but here it is 'larger'" in result.output


def test_an_online_calibration_warns_of_other_questions(stack):
    made, _ = calibrate(stack, "--online", "--limit", "3", "--num_turns", "1")
    assert made.source == "online"
    assert not made.is_foreign("qqq")
    assert made.is_foreign("qqqq")


def test_an_online_calibration_knows_its_questions_as_a_template_renders_them(stack):
    rendered = ("--set", "prompt={model: tinylm/target}")
    calibrate(stack, *rendered, "--online", "--limit", "3")
    at_level = ("--set", "controller.args.coverage=marginal", "--set", "controller.args.alpha=0.4", *rendered)
    evaluated = ("eval", "--config", stack, *at_level, "--set", "controller.args.calibration=made.json", "--json")
    known, foreign = call(*evaluated, "--limit", "3"), call(*evaluated, "--limit", "4")
    assert (errors_in(known), errors_in(foreign)) == ({}, {})
    assert "for questions other than this one" not in known.stderr
    assert "for questions other than this one" in foreign.stderr


def test_the_file_says_what_the_calibration_cost(stack):
    made, _ = calibrate(stack)
    (level,) = made.levels
    taken_over = sum(round(turn.rate * len(turn.scores)) for turn in level.turns[:-1])
    assert level.num_target_tokens == 3 * taken_over > 0
    drafted = 5 * sum(len(turn.scores) for turn in level.turns)
    assert level.ledger["total"]["decoded"] == drafted + level.num_target_tokens


def test_a_run_counts_what_its_calibration_cost(stack):
    made, _ = calibrate(stack, "--alpha", "0.25")
    marginal = ("--set", "controller.args.coverage=marginal", "--set", "controller.args.calibration=made.json")
    evaluated = (
        "eval",
        "--config",
        stack,
        *marginal,
        "--set",
        "controller.args.alpha=0.4",
        "--output_path",
        "run",
    )
    call(*evaluated)
    cost = made.level(0.4).ledger["total"]
    summary = json.loads(Path("run", "summary.json").read_text())["summary"]
    assert summary["calibration_tokens"] == cost


def test_the_packaged_stack_is_calibrated_on_other_questions_at_every_turn_that_chains_reach():
    config = load_config("configs:conformal_draft_target")
    rule = check_stack(config).rule
    assert (rule.coverage, rule.calibration.source, len(rule.calibration.questions)) == ("marginal", "held_out", 100)
    assert all(turn.rate == pytest.approx(rule.alpha, abs=0.01) for turn in rule.calibration.levels[0].turns[:9])
    asked = {sample.prompt for sample in load_dataset(**config.dataset.model_dump())}
    seen = {sample.prompt for sample in load_dataset("tinylm:held_out", num_samples=100, seed=1)}
    assert len(asked & seen) <= 1  # short questions may come twice


def test_other_controllers_are_refused(stack):
    result = call(
        "calibrate", "conformal", "--config", stack, "--output_path", "made.json",
        "--set", "controller={type: NativeGenerationController}",
    )  # fmt: skip
    assert result.exit_code == 2
    assert "alpha" in result.output or "NativeGenerationController" in result.output


def test_eval_scores_the_first_chunks_of_all_questions_before_it_answers_one(stack, tmp_path):
    """A1's published order: `calibration: online`, and a pool of the first turn."""
    rule = "{type: conformal, args: {alpha: 0.5, pool: first_turn, calibration: online}}"
    command = ["eval", "--config", stack, "--set", "controller.args.coverage=null", "--output_path", "run"]
    command += ["--set", f"controller.args.rule={rule}", "--json"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0, done.output
    kept = ConformalCalibration.load(tmp_path / "run" / "calibration.yaml")
    assert kept.source == "online"
    (level,) = kept.levels
    assert (level.alpha, [len(turn.scores) for turn in level.turns]) == (0.5, [12])  # two chains of six questions
    assert (
        load_config(tmp_path / "run" / "config.yaml")
        .controller.args["rule"]["args"]["calibration"]
        .endswith("calibration.yaml")
    )
    section = json.loads((tmp_path / "run" / "summary.json").read_text())["summary"]["sections"][
        "ConformalDraftTargetController"
    ]
    assert 0 <= section["budget_prediction"]["value"] <= 1
    assert CliRunner().invoke(main, [*command, "--resume"]).exit_code == 0


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_rate_has_the_interval_of_its_questions() -> None:
    fired, questions = np.repeat([1, 0, 0, 1, 0, 0, 0, 1], 25), np.repeat(np.arange(8), 25)
    rate, interval = realised_rate(fired, questions, seeded())
    assert rate == 0.375
    assert interval is not None
    binomial = wilson_interval(75, 200)
    assert interval.high - interval.low > 3 * (binomial.high - binomial.low)
    assert realised_rate(fired, np.zeros(200), seeded())[1] is None


def test_the_interval_covers_where_the_binomial_one_does_not() -> None:
    """400 runs of 60 questions with 10 decisions each, which agree within a question; 4 binomial standard errors."""
    rng = seeded(1)
    clustered = binomial = 0
    for _ in range(400):
        fired = (rng.random((60, 10)) < rng.beta(0.4, 0.6, size=(60, 1))).ravel()
        _, interval = realised_rate(fired, np.repeat(np.arange(60), 10), rng, num_resamples=400)
        assert interval is not None
        clustered += interval.low <= 0.4 <= interval.high
        of_binomial = wilson_interval(int(fired.sum()), 600)
        binomial += of_binomial.low <= 0.4 <= of_binomial.high
    assert clustered / 400 > 0.95 - 4 * math.sqrt(0.95 * 0.05 / 400) - 0.01  # 0.01: 60 questions are few
    assert binomial / 400 < 0.7
