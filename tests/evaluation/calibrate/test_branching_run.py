"""`calibrate branching`: branches of the embedded draft, verdicts after each layer, and the file that is left."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.controllers.tree.calibration_file import BranchingCalibration
from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.calibrate.branching_run import BranchedProblem, calibrate, run_branches
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.stack.load import load_config

SMALL = [
    "controller.args.branching_factor=2",
    "controller.args.max_tokens=12",
    "workers.generation.args.model=tinylm/draft",
]


def problem(*, confidences, scores, settles=3, num_layers=4):
    """Verdicts that are right from a layer on, and the other way round before."""
    layers = np.arange(1, num_layers + 1)
    settled = layers >= settles
    entropies = np.where(settled, 0.1 - 0.001 * layers, 2.0)
    read = [np.where(settled, score, 1 - score).tolist() for score in scores]
    answers = [str(index) for index in range(len(scores))]
    return BranchedProblem(
        answers,
        confidences,
        scores,
        [entropies.tolist()] * len(scores),
        read,
    )


def test_thresholds_are_chosen_on_what_was_judged():
    problems = [problem(confidences=[0.6 + i / 100, 0.5], scores=[0.9, 0.2]) for i in range(20)]
    problems += [problem(confidences=[0.5, 0.99], scores=[0.9, 0.1])]  # surest of the wrong one
    found = calibrate(problems, model="m", dataset="d", seed=3)
    highest = [max(each.confidences) for each in problems]
    assert found.skip_gate.least == pytest.approx(np.percentile(highest, 75))
    assert (found.branching_factor, found.model, found.data, found.seed) == (2, "m", "d", 3)
    assert found.figures.skip_rate == pytest.approx(6 / 21)
    assert found.figures.skip_agreement == pytest.approx(5 / 6)
    rule = found.layer_exit
    assert rule is not None
    assert rule.layers(problems[0].entropies).tolist() == [3, 3]
    assert found.figures.exit_agreement == 1.0
    assert (found.figures.exit_share, found.figures.depth) == (1.0, 0.75)


def test_a_choice_follows_scores_and_confidence():
    one = problem(confidences=[0.5, 0.98], scores=[0.6, 0.5])
    assert one.chosen() == 1  # 0.6 * 0.707 against 0.5 * 0.990
    assert one._replace(scores=[0.9, 0.1]).chosen() == 0


def test_a_stack_that_is_no_branching_one_is_refused():
    with pytest.raises(ConfigError, match="calibrate the KVShareBranchingController by itself"):
        run_branches(load_config("configs:native"), [])
    config = load_config("configs:kv_share_branching", ["controller.args.branching_factor=1"])
    with pytest.raises(ConfigError, match="several branches"):
        run_branches(config, [])
    config = load_config(
        "configs:kv_share_branching", ["workers.generation={type: ScriptedWorker, args: {respond: a}}"]
    )
    with pytest.raises(ConfigError, match="must be a HuggingFaceWorker"):
        run_branches(config, [])
    with pytest.raises(ConfigError, match="give a dataset with problems"):
        calibrate([], model="m", dataset="d", seed=0)


LEAVES = "{type: verdict, args: {layer_exit: {max_entropy: 99.0, max_change: 99.0}}}"  # at the second layer


@pytest.mark.parametrize("scorer", ["verdict", LEAVES])
def test_layers_end_where_the_workers_verdict_is(scorer):
    config = load_config(
        "configs:kv_share_branching", [*SMALL, f"controller.args.scorer={scorer}", "controller.args.gates.skip=true"]
    )
    found = run_branches(config, load_dataset("tinylm:held_out", num_samples=2))
    assert len(found) == 2
    for each in found:
        assert np.array(each.layer_scores)[:, -1] == pytest.approx(each.scores, abs=1e-4)
        assert np.array(each.entropies).shape == np.array(each.layer_scores).shape
        assert np.all(np.array(each.entropies) > 0)
        assert len(each.answers) == 2


def test_the_command_leaves_a_file_that_a_controller_takes(tmp_path):
    path = tmp_path / "branching.yaml"
    sets = [part for override in SMALL for part in ("--set", override)]
    command = ["calibrate", "branching", "--config", "configs:kv_share_branching", *sets, "--limit", "4"]
    result = CliRunner().invoke(main, [*command, "--output_path", str(path), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    kept = BranchingCalibration.load(path)
    assert told["skip_gate"] == {"least": kept.skip_gate.least, "gap": kept.skip_gate.gap}
    assert (kept.model, kept.data, kept.figures.num_problems) == ("tinylm/draft", "tinylm:held_out", 4)
    scorer = {"type": "verdict", "args": {"layer_exit": False}}
    assert KVShareBranchingController(calibration=path, scorer=scorer).gates.skip == kept.skip_gate
    shown = CliRunner().invoke(main, [*command, "--output_path", str(path)])
    assert "skip gate   confidence" in shown.stdout
    assert "layer exit  " in shown.stdout
