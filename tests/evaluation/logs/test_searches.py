"""Searches as recordings: what a trial says of a stop on a recorded search is what the search does with that stop."""

import json
import random

import pytest

from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.logs.graded import recording_of
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import LoggedQuestion, LoggedSample
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.evaluation.run.recording_stack import NEVER, recording_stack
from scaffolding_ext.evaluation.run.run_folder import claimed
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.evaluation.run.session import Session
from scaffolding_ext.evaluation.tune.endings import Whole
from scaffolding_ext.evaluation.tune.plays import Plays
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.stack_file import controller_of, setting_of
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.config import ComponentConfig
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.tinylm.grammar import Problem, sample_problem

RULE = LeaderChange(miss=0.3)


def stack(tmp_path, problems, **args):
    questions = tmp_path / "questions.jsonl"
    rows = [{"id": str(n), "prompt": each.question, "target": each.answer} for n, each in enumerate(problems)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    search = {"strategy": "BestOfN", "widths": [2, 3, 4], "stop": "agreement", "selector": "vote", "budget": 400}
    search |= {"max_tokens": 40, **args}
    return load_config(
        {
            "controller": {"type": "SearchController", "args": search},
            "workers": {"generation": {"type": "HuggingFaceWorker", "args": {"model": "tinylm/draft"}}},
            "dataset": {"source": str(questions)},
            "seed": 0,
        }
    )


def problems(num):
    rng = random.Random(3)
    found: list[Problem] = []
    while len(found) < num:
        problem = sample_problem(rng, "held_out")
        if problem.num_steps <= 3:
            found.append(problem)
    return found


@pytest.mark.parametrize(
    ("strategy", "setting"),
    [
        ("BestOfN", Setting(Whole(), 4, RULE)),
        ("Rebase", Setting(Whole(), 4, RULE, "reward")),
        ("BestOfN", Setting(Whole(), 3)),
    ],
)
def test_a_search_does_what_the_trial_says(tmp_path, strategy, setting):
    """Solutions of at most 40 tokens: some end with an answer, the others are asked for one."""
    config = stack(tmp_path, problems(4), strategy=strategy, steps=16, sampling_params={"temperature": 1.0})
    with claimed(tmp_path / "run"):
        Session.of(recording_stack(config, 0), tmp_path / "run").go(lambda message: None)
    trial = Plays(read_recording([tmp_path / "run"]))
    assert trial.recording.is_of_searches
    assert {tuple(each.rounds) for each in trial.recording.questions} == {(2, 3, 4)}
    played = trial.play(setting)
    controller = ComponentConfig.model_validate(controller_of(setting, config.controller, 40))
    stopped = config.model_copy(update={"controller": controller})
    with build_stack(stopped) as llm:
        records = {each.id: each for each in evaluate(llm, load_dataset(config.dataset.source))}
    live = [records[each.id] for each in trial.recording.questions]
    assert [bool(record.correct) for record in live] == [bool(each) for each in played.right]
    decoded = [record.ledger["total"]["decoded"] for record in live]
    assert decoded == pytest.approx(played.costs["decoded"], abs=4)  # a solution has whole tokens of its round
    if setting.rule is not None:
        assert str(setting_of(stopped, trial.recording)) == str(setting)
        assert strategy == "Rebase" or len(set(played.samples)) > 1  # the rule ends some searches early


def test_a_recorded_search_runs_through_all_its_widths_and_one_without_widths_to_its_end(tmp_path):
    grows = recording_stack(stack(tmp_path, problems(1)), look_every=16)
    assert grows.controller.args["stop"] == NEVER
    fixed = recording_stack(stack(tmp_path, problems(1), widths=None, strategy="Rebase"), 0)
    assert fixed.controller.args["stop"] is None


def test_what_replay_cannot_play_of_a_search_is_refused(tmp_path):
    recording = recording_of([question(["7", "8"], [1, 2])], ["log"], "sha256:0")
    for args in ({"selector": "best"}, {"stop": "certaindex"}):
        with pytest.raises(ConfigError, match="is a search that replay cannot play"):
            setting_of(stack(tmp_path, problems(1), **args), recording)
    with pytest.raises(ConfigError, match="but the recorded samples are solutions of searches: record its own"):
        setting_of(load_config("configs:native"), recording)


def question(answers, rounds):
    return LoggedQuestion("q", "7", [LoggedSample(each, tokens=10) for each in answers], rounds=rounds)


def test_a_rule_is_asked_between_rounds_alone_and_solutions_keep_their_order():
    searches = [question(["7", "7", "7", "8"], [2, 4]), question(["8", "7", "8", "8", "8", "8"], [2, 6])]
    trial = Plays(recording_of(searches, ["log"], "sha256:0"))
    assert trial.recording.num_samples == 6  # the first search has two solutions without an answer
    played = trial.play(Setting(Whole(), 6, LeaderChange(miss=0.4)))
    assert played.samples.tolist() == [2, 6]
    assert played.right.tolist() == [1, 0]
    assert played.costs["decoded"].tolist() == [20, 60]
    assert trial.play(Setting(Whole(), 3)).samples.tolist() == [6, 6]
    assert trial.full.costs["decoded"].tolist() == [40, 60]
    assert "critical" not in trial.full.costs
    trial.try_all()
    assert not any("first" in name or "shortness" in name for name in trial.lists)
