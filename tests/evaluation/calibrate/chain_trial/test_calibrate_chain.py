"""`calibrate chain`: recorded on a scripted worker, chosen on one half, told of the other, and used in a stack."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.controllers.calibration_file import CalibrationWarning
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.policy_file import Calibrated, ChainPolicy
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.calibrate.chain_trial.replay import COSTS, Outcome
from scaffolding_ext.evaluation.calibrate.chain_trial.trial import Setting, Trial, choose, halves, schedules_to_try

WORKER = """
import re
from scaffolding_ext.prompts.prompting import family_named
from scaffolding_ext.protocol.notes import PROBE, purpose_of
from scaffolding_ext.testing import ScriptedWorker

FAMILY = family_named("deepseek_r1")

class Thinker(ScriptedWorker):
    '''Knows the answer, which is the question's length, after twice as many tokens, and thinks for 400 more.

    Of a question that begins with h it is sure of a wrong answer for long.
    '''
    model = "scripted"

    def __init__(self):
        super().__init__(respond)

def respond(task):
    question, text = task.input_str.split(":", 1)
    if purpose_of(task) != PROBE:
        return ("x" * (2 * len(question) + 400) + "</think> \\\\boxed{%d}" % len(question))[len(text):]
    suffix = next(each for each in (FAMILY.probe, FAMILY.close) if text.endswith(each))
    position = len(text) - len(suffix)
    if question.startswith("h"):
        return "%d}" % (len(question) if position >= 390 else 999)
    return "%d}" % (len(question) if position >= 2 * len(question) else 1000 + position)
"""
NUM = 24


def call(*arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chains")
    (folder / "thinking_worker.py").write_text(WORKER)
    stack = {
        "controller": {
            "type": "DynasorCoTController",
            "args": {"max_tokens": 900, "chunk_size": 40, "certainty_threshold": 5, "family": "deepseek_r1"},
        },
        "workers": {"generation": {"type": "thinking_worker:Thinker"}},
        "dataset": "data.jsonl",
        "prompt": None,
    }
    (folder / "stack.yaml").write_text(json.dumps(stack))
    rows = [{"id": str(i), "question": "q" * (10 + i) + ":", "answer": str(10 + i)} for i in range(NUM)]
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)


def calibrate(*more, path="stop.yaml", store="recorded"):
    arguments = ("--config", "stack.yaml", "--store", store, "--num_logprobs", "0", "--output_path", path)
    return call("calibrate", "chain", *arguments, "--model", "scripted", *more)


@pytest.fixture(scope="module")
def policy(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.chdir(folder)
        result = calibrate("--plot_path", "stop.png")
        assert result.exit_code == 0, result.output
        return ChainPolicy.load("stop.yaml"), result.output


def test_the_file_says_what_was_chosen_on_what_and_how_it_did_elsewhere(policy):
    made, output = policy
    assert made.policy["rule"]["type"] in ("consecutive", "window")
    assert made.policy["schedule"]["args"]["chunk_size"] in (20, 40, 80)
    assert (made.model, made.loss, made.max_loss, made.confidence, made.cost) == (
        "scripted", "lost", 0.02, None, "decoded",
    )  # fmt: skip
    assert made.fingerprint.startswith("sha256:")
    assert made.recorded["spacing"] == 20
    assert "certainty_threshold" not in made.recorded["generation_controller"]["args"]
    assert made.chosen_on["num_questions"] == made.reported_on["num_questions"] == NUM / 2
    assert made.reported_on["accuracy"] == made.reported_on["full_accuracy"] == 1
    assert made.reported_on["decoded"] < made.reported_on["full_decoded"] / 2
    assert len(made.positions) == NUM
    assert "policy    " in output
    assert "loss      0.0% (lost), 0.0% where it was chosen" in output
    assert Path("stop.png").read_bytes().startswith(b"\x89PNG")


def test_a_stack_that_names_the_file_stops_where_the_replay_did(policy):
    made, _ = policy
    rule = "controller.args.rule={type: calibrated, args: {path: stop.yaml, model: scripted, window: 24}}"
    free = ("--set", "controller.args.chunk_size=null", "--set", "controller.args.certainty_threshold=null")
    result = call("eval", "--config", "stack.yaml", *free, "--set", rule, "--output_path", "live", "--json")
    assert result.exit_code == 0, result.output
    records = [json.loads(line) for line in Path("live", "samples.jsonl").read_text().splitlines()]
    left = [next(e["position"] for e in record["trace"] if e["event"] in ("stop", "end")) for record in records]
    assert sorted(left) == sorted(made.positions)
    drifts = [event for record in records for event in record["trace"] if event["event"] == "drift"]
    assert len(drifts) == 1  # the window of 24 is full at the last
    assert (drifts[0]["distance"], drifts[0]["drifted"]) == (0, False)
    found = call("calibrate", "drift", "stop.yaml", "live/samples.jsonl", "--json")
    assert (found.exit_code, json.loads(found.output)["num_chains"]) == (0, NUM)
    drifted = call("calibrate", "drift", "stop.yaml", "recorded/samples.jsonl", "--model", "scripted")
    assert drifted.exit_code == 1
    assert "drifted: calibrate again" in drifted.output
    other = call("calibrate", "drift", "stop.yaml", "live/samples.jsonl", "--model", "other")
    assert "chain policy was made for 'scripted' and is used with 'other'" in other.output


def test_what_was_recorded_is_not_recorded_again(policy, tmp_path):
    before = Path("recorded", "samples.jsonl").read_bytes()
    again = calibrate("--json", "--loss", "differs", "--cost", "nothing", path=str(tmp_path / "x.yaml"))
    assert Path("recorded", "samples.jsonl").read_bytes() == before
    document = json.loads(again.output.splitlines()[-1])
    assert document["policy"] is None or document["figures"]["nothing"] < document["figures"]["full_nothing"]
    other = calibrate("--spacing", "10")
    assert other.exit_code == 2
    assert "Error: controller.args.spacing: is 10, but the run in recorded has 20" in other.output


def test_chains_that_failed_are_left_out_and_told_of(folder, tmp_path):
    rows = [{"id": str(i), "question": "q" * (5 + i) + (":" if i else ""), "answer": str(5 + i)} for i in range(6)]
    (tmp_path / "one_bad.jsonl").write_text("\n".join(map(json.dumps, rows)))  # the worker needs the colon
    arguments = ("--config", "stack.yaml", "--dataset", str(tmp_path / "one_bad.jsonl"), "--num_logprobs", "0")
    places = ("--store", str(tmp_path / "recorded"), "--output_path", str(tmp_path / "stop.yaml"), "--model", "m")
    said = call("calibrate", "chain", *arguments, *places)
    assert "Warning: 1 of 6 chains failed and are left out; the first failure: " in said.output
    assert len(ChainPolicy.load(tmp_path / "stop.yaml").positions) == 5


def test_where_no_setting_passes_nothing_is_stopped(policy, tmp_path):
    path = str(tmp_path / "none.yaml")
    said = calibrate("--confidence", "0.9", "--max_loss", "0.01", path=path)  # 12 questions cannot show that
    assert "settings passes: nothing is stopped" in said.output
    made = ChainPolicy.load(path)
    assert made.policy is None
    assert (made.confidence, made.testing) == (0.9, "fixed_sequence")
    assert made.reported_on["decoded"] == made.reported_on["full_decoded"]
    rule = Calibrated(path)
    assert not rule.needs.answer
    assert not rule([None])


def test_with_enough_questions_a_setting_passes_with_confidence(policy, tmp_path):
    path = str(tmp_path / "made.yaml")
    promised = ("--confidence", "0.7", "--max_loss", "0.25")  # 0.75 ** 8 of the p-value is enough for one test
    assert calibrate(*promised, path=path).exit_code == 0
    made = ChainPolicy.load(path)
    assert made.policy is not None
    assert made.reported_on["loss"] == 0
    calibrate(*promised, "--testing", "bonferroni", path=path)  # and too little for a hundred
    assert (ChainPolicy.load(path).policy, ChainPolicy.load(path).testing) == (None, "bonferroni")


@pytest.fixture(scope="module")
def hard(folder):
    """Calibrates on 24 questions, of which those of the half that reports are hard."""
    reporting = set(halves(NUM, np.random.default_rng(0))[1].tolist())
    questions = [("h" if i in reporting else "q") + "q" * (10 + i) for i in range(NUM)]
    rows = [{"id": str(i), "question": f"{q}:", "answer": str(len(q))} for i, q in enumerate(questions)]
    (folder / "hard.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return functools.partial(calibrate, "--dataset", "hard.jsonl", path="hard.yaml", store="hard")


def test_a_policy_that_breaks_its_limit_is_not_written(hard, folder):
    said = hard("--max_loss", "0.05")
    assert said.exit_code == 1
    assert not (folder / "hard.yaml").exists()
    assert "loss      100.0% (lost), 0.0% where it was chosen" in said.output
    assert (
        "Error: nothing is written: the policy loses 100.0% of the 12 questions that are held out from the choice, and "
        "--max_loss allows 5.0%; a test with --confidence 0.9 needs at least 128 questions, and these are 24; --force "
        "writes the policy"
    ) in said.output
    document = json.loads(hard("--json").stdout.splitlines()[-1])
    assert (document["output_path"], document["figures"]["loss"]) == (None, 1.0)
    none = hard("--max_loss", "0")
    assert "with --max_loss 0 no number of questions is enough: give a --max_loss above 0" in none.output


def test_by_force_it_is_written_and_marked_and_loading_it_warns(hard, policy):
    said = hard("--max_loss", "0.05", "--force")
    assert said.exit_code == 0, said.output
    with pytest.warns(CalibrationWarning, match=r"--force: the policy lost 100.0% of 12 .*, and its limit was 5.0%"):
        assert Calibrated("hard.yaml").policy.forced
    rule = "controller.args.rule={type: calibrated, args: {path: hard.yaml}}"
    free = ("--set", "controller.args.chunk_size=null", "--set", "controller.args.certainty_threshold=null")
    live = call("eval", "--config", "stack.yaml", *free, "--set", rule, "--limit", "2", "--output_path", "hard_live")
    assert "Warning: hard.yaml was written with --force" in live.output
    assert calibrate("--force", path="sound.yaml").exit_code == 0
    assert not ChainPolicy.load("sound.yaml").forced  # nothing had to be forced


def test_the_confidence_that_is_asked_for_is_the_one_that_is_kept():
    lost = [1, 1] + [0] * 98
    tried, rng = trial(outcome(lost, 50)), np.random.default_rng(0)
    found = {c: choose(tried, np.arange(100), 0.1, c, rng, testing="bonferroni") for c in (0.5, 0.9, 0.999)}
    assert found == {0.5: 0, 0.9: 0, 0.999: None}  # 2 of 100 are no proof of that
    with pytest.raises(ConfigError, match=r"confidence: is 0.05; it must be at least 0.5 and below 1"):
        choose(tried, np.arange(100), 0.1, 0.05, rng)


def test_a_rule_brings_its_own_schedule(policy):
    rule = Calibrated("stop.yaml")
    assert DynasorCoTController(rule=rule).schedule is rule.schedule
    with pytest.raises(ConfigError, match="rule: sets what chunk_size sets, too"):
        DynasorCoTController(rule=rule, chunk_size=32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--confidence", "0.9", "--max_loss", "0"), "with it --max_loss must be above 0"),
        (("--confidence", "0.05"), "at least 0.5: for a risk of 0.05 that it does not, give 0.95"),
        (("--limit", "3", "--store", "other"), "limit: leaves 3 chains"),
        (
            ("--set", "controller={type: NativeGenerationController}"),
            "controller.type: is a NativeGenerationController",
        ),
    ],
)
def test_what_cannot_be_calibrated_is_refused(arguments, message):
    given = {"--config": "stack.yaml", "--store": "recorded", "--output_path": "x.yaml", "--model": "m"}
    given |= dict(zip(arguments[::2], arguments[1::2], strict=True))
    result = call("calibrate", "chain", "--num_logprobs", "0", *(part for pair in given.items() for part in pair))
    assert result.exit_code == 2
    assert message in result.output


def test_a_file_of_another_kind_is_refused(tmp_path):
    (tmp_path / "votes.yaml").write_text("kind: vote_profile\nversion: 1\n")
    with pytest.raises(ConfigError, match=r"is no chain policy file .*kind: .*; make one: scaffolding-ext calibrate"):
        ChainPolicy.load(tmp_path / "votes.yaml")
    (tmp_path / "old.yaml").write_text("kind: chain_policy\nversion: 0\n")
    with pytest.raises(ConfigError, match=r"is no chain policy file of version 1 .version: "):
        Calibrated(str(tmp_path / "old.yaml"))
    (tmp_path / "short.yaml").write_text("kind: chain_policy\nversion: 1\n")
    with pytest.raises(ConfigError, match="Field required"):
        ChainPolicy.load(tmp_path / "short.yaml")


# ---- the choice


def outcome(lost, cost):
    column = np.array(lost, dtype=float)
    costs = dict.fromkeys(COSTS, np.full(len(column), float(cost)))
    return Outcome(np.zeros(len(column), dtype=int), column, 1 - column, column, column, costs)


def trial(*outcomes):
    setting = Setting({"type": "consecutive", "args": {}}, {"type": "ProbeSchedule", "args": {}})
    return Trial([setting] * len(outcomes), list(outcomes), outcome([0] * len(outcomes[0].lost), 100), [])


def test_the_cheapest_that_loses_no_more_is_chosen_and_none_that_costs_more_than_it_saves():
    tried = trial(outcome([0, 0, 0, 0], 90), outcome([0, 1, 0, 0], 50), outcome([1, 1, 1, 0], 10))
    rng, rows = np.random.default_rng(0), np.arange(4)
    assert [choose(tried, rows, loss, None, rng) for loss in (0.0, 0.25, 0.8)] == [0, 1, 2]
    assert choose(tried, np.array([0, 2, 3]), 0.0, None, rng) == 1  # on these it loses nothing
    dear = trial(outcome([0, 0], 120))
    assert choose(dear, np.arange(2), 0.5, None, rng) is None


def test_halves_share_no_question():
    first, second = halves(7, np.random.default_rng(0))
    assert sorted([*first, *second]) == list(range(7))
    assert (len(first), len(second)) == (4, 3)


def test_every_schedule_that_is_tried_looks_where_looks_were_recorded():
    for schedule in schedules_to_try(16):
        gaps = Setting({"type": "consecutive", "args": {"threshold": 2}}, schedule).build()[1].gaps()
        assert [next(gaps) % 16 for _ in range(9)] == [0] * 9


def test_a_setting_is_written_like_a_call_also_where_rules_are_nested():
    inner = [{"type": "consecutive", "args": {"threshold": 2}}, {"type": "confidence", "args": {"threshold": 0.9}}]
    setting = Setting({"type": "all", "args": {"rules": inner}}, {"type": "ProbeSchedule", "args": {"chunk_size": 16}})
    assert str(setting) == "all(rules=[consecutive(threshold=2), confidence(threshold=0.9)], chunk_size=16)"
