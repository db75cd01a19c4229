"""`scaffolding-ext tune` and `replay`, on logs that were written before."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from scaffolding_ext import load_config
from scaffolding_ext.cli.main import main
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.tune.choose import Cheapest
from scaffolding_ext.evaluation.tune.endings import Cut, Stopped, Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import Setting
from scaffolding_ext.evaluation.tune.stack_file import setting_of, stack_of
from scaffolding_ext.evaluation.tune.table import rows_of
from scaffolding_ext.evaluation.tune.tuned import tuned
from scaffolding_ext.registry import allocation_rules
from scaffolding_ext.stack.load import TunedStackWarning
from scaffolding_ext.stats.intervals import Estimate


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, list(map(str, arguments)))


def write_log(path: Path, num_questions: int = 60, num_samples: int = 4, seed: int = 0, **fields: Any) -> Path:
    """Questions whose answers are mostly right; `fields` go into every sample, None takes a field out."""
    rng = np.random.default_rng(seed)
    lines = []
    for number in range(num_questions):
        ability = np.clip(rng.normal(0.85, 0.2), 0.1, 1.0)
        samples = []
        for _ in range(num_samples):
            answer = "7" if rng.random() < ability else str(rng.integers(10, 13))
            sample = {"answer": answer, "output_tokens": int(rng.integers(50, 150)), **fields}
            samples.append({key: value for key, value in sample.items() if value is not None})
        lines.append(json.dumps({"question": f"q{number}", "target": "7", "samples": samples}))
    path.write_text("\n".join(lines))
    return path


def write_chains(path: Path, num_questions: int = 12, num_samples: int = 4) -> Path:
    """Thinking chains that were asked at each quarter, which lie at uneven places."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(num_questions):
        samples = []
        for _ in range(num_samples):
            length = int(rng.integers(100, 400))
            answers = rng.choice(["7", "8", "9"], 4, p=[0.7, 0.2, 0.1]).tolist()
            probes = [
                {"tokens": length * (1 + index) // 4, "answer": answer, "probability": float(rng.uniform(0.3, 1))}
                for index, answer in enumerate(answers)
            ]
            samples.append({"answer": answers[-1], "output_tokens": length, "probes": probes})
        lines.append(json.dumps({"question": f"q{number}", "target": "7", "samples": samples}))
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("logs") / "log.jsonl")


def test_a_table_of_twelve_lines_and_advice_without_names_of_classes(log: Path) -> None:
    result = run("tune", log)
    assert result.exit_code == 0, result.output
    table, _, rest = result.stdout.partition("\n\n")
    assert len(table.splitlines()) <= 12
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert [line.split("  ")[0] for line in table.splitlines()[1:]][:2] == ["ask 4 times", "ask once"]
    advice = " ".join(rest.rpartition("\n\n")[2].split())
    assert re.match(r"Advice: ask .*\. Decoded tokens: \d+ % saved \(\d+ to \d+\); accuracy: ", advice)
    assert "--max_loss 0.3 bounds the loss on the questions that choose" in advice
    assert not set(allocation_rules.names()) & set(re.findall(r"\w+", result.stdout))
    assert "60 questions, 4 samples each" in rest
    assert len(result.stdout.split()) <= 250
    assert "Next: the same command with --output_path stack.yaml" in rest


def test_what_is_written_loads_and_replays_to_what_was_found(log: Path, tmp_path: Path) -> None:
    stack = tmp_path / "stack.yaml"
    result = run("tune", log, "--json", "--output_path", stack, "--max_loss", 2)
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told.keys() >= {"chosen", "baselines", "frontier", "num_questions", "measure"}
    figures = {"cost_share", "points", "interval", "rounds"}
    assert all(row.keys() >= {"name", *figures} for row in told["baselines"])
    assert all(row.keys() == {"time_share", "setting", "tokens", "path", "points"} for row in told["frontier"])
    assert told["chosen"].keys() >= {"stack", *figures}
    assert (told["num_questions"], told["measure"]) == (60, "accuracy")
    config = load_config(stack)
    assert config.resolved() == told["chosen"]["stack"]
    assert config.tuned is not None
    assert config.tuned.data.startswith("sha256:")
    replayed = json.loads(run("replay", log, "--config", stack, "--json").stdout)
    chosen = told["chosen"]
    saved, points = 100 * (1 - chosen["cost_share"]), 0.0 + round(chosen["points"], 1)
    advice = " ".join(run("tune", log, "--max_loss", 2).stdout.split())
    assert f"Decoded tokens: {saved:.0f} % saved (" in advice
    assert f"accuracy: {points:+.1f} (" in advice
    fields = {"cost_share", "points", "interval", "rounds", "accuracy", "full_accuracy", "num_questions"}
    assert replayed.keys() >= fields
    assert replayed["cost_share"] == pytest.approx(told["chosen"]["cost_share"], abs=0.1)
    assert replayed["accuracy"] - replayed["full_accuracy"] == pytest.approx(replayed["points"] / 100)


def test_a_stack_says_where_it_runs_otherwise_than_it_was_tuned(log: Path, tmp_path: Path) -> None:
    stack = tmp_path / "stack.yaml"
    run("tune", log, "--config", "configs:majority_vote", "--output_path", stack)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = load_config(stack)
    assert config.workers["generation"].args["model"] == "tinylm/target"
    with pytest.warns(TunedStackWarning, match="was tuned on samples of 'tinylm/target' and runs 'another'"):
        load_config(stack, ["workers.generation.args.model=another"])
    warm, own = ["tuned.sampling={temperature: 0.7}"], "controller.args.generation_controller.args.sampling_params"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_config(stack, [*warm, "sampling={temperature: 1.0}"])  # the controller's own 0.7 wins
    with pytest.warns(TunedStackWarning, match=r"with temperature 0.7 and samples with 1.0"):
        load_config(stack, [*warm, f"{own}.temperature=1.0"])


def test_a_tuned_stack_names_the_data_and_the_model_of_the_run_that_it_was_tuned_on(tmp_path: Path) -> None:
    """The run's stack says dataset, model and sampling; the written stack is held to them."""
    folder, stack = tmp_path / "run", tmp_path / "tuned.yaml"
    own = tmp_path / "own.yaml"
    own.write_text(
        "controller: {type: NativeGenerationController, args: {sampling_params: {temperature: 0.7, max_tokens: 200}}}\n"
        "workers: {generation: {type: HuggingFaceWorker, args: {model: tinylm/draft}}}\n"
        "dataset: {source: 'tinylm:held_out', num_samples: 3}\nevaluation: {epochs: 3}\n"
    )
    assert run("eval", "--config", own, "--output_path", folder).exit_code == 0
    assert run("tune", folder, "--config", own, "--output_path", stack).exit_code == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned = load_config(stack).tuned
    assert tuned is not None
    assert (tuned.model, tuned.dataset) == ("tinylm/draft", "tinylm:held_out")
    assert tuned.sampling == {"temperature": 0.7, "max_tokens": 200}
    alone = tmp_path / "alone.yaml"  # without --config the run's own stack is kept
    assert run("tune", folder, "--output_path", alone).exit_code == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kept, given = load_config(alone), load_config(stack)
    assert (kept.controller, kept.workers, kept.prompt) == (given.controller, given.workers, given.prompt)
    assert "max_tokens: 200" in alone.read_text()
    assert (kept.dataset, kept.evaluation.epochs) == (None, 1)  # its questions have chosen
    with pytest.warns(TunedStackWarning, match="tuned on 'tinylm:held_out' and its dataset is 'other.jsonl'"):
        load_config(stack, ["dataset={source: other.jsonl}"])
    colder = tmp_path / "colder.yaml"
    colder.write_text(stack.read_text().replace("temperature: 0.7\n", "temperature: 0.2\n", 1))
    with pytest.warns(TunedStackWarning, match=r"with temperature 0\.7 and samples with 0\.2"):
        load_config(colder)
    other = tmp_path / "other.yaml"
    other.write_text(own.read_text().replace("tinylm/draft", "tinylm/target"))
    run("tune", folder, "--config", other, "--output_path", stack)
    with pytest.warns(TunedStackWarning, match="tuned on samples of 'tinylm/draft' and runs 'tinylm/target'"):
        load_config(stack)


def test_whole_chains_are_written_as_whole_chains_where_the_base_stops_them(log: Path) -> None:
    trial, base = Replay(read_recording([log])), load_config("configs:dynasor_cot")
    row = rows_of(trial, {"": trial.full})[0]
    written = stack_of(Setting(Whole(), 4), row, trial, promise=None, base=base)
    sample = written.controller.args["generation_controller"]
    given = base.controller.args
    expected = {**given["sampling_params"], "max_tokens": given["max_tokens"]}
    assert sample == {"type": "NativeGenerationController", "args": {"sampling_params": expected}}
    assert setting_of(written).ending == Whole()


def test_a_written_stack_of_weights_over_cut_and_stopped_chains_loads_and_plays(tmp_path: Path) -> None:
    """As on recorded thinking chains: probes at uneven places, weights by the asked answer, cuts and stops."""
    log, stack = write_chains(tmp_path / "chains.jsonl"), tmp_path / "stack.yaml"
    trial = Replay(read_recording([log]))
    trial.try_all()
    weighed = {type(own[0].ending): own[0] for own in trial.lists.values() if own[0].weight == "answer_probability"}
    assert weighed.keys() == {Whole, Cut, Stopped}
    for setting in weighed.values():
        row = rows_of(trial, {"": trial.played[setting]})[0]
        stack.write_text(stack_of(setting, row, trial, promise=None).to_yaml())
        replayed = json.loads(run("replay", log, "--config", stack, "--json").stdout)
        assert replayed["cost_share"] == pytest.approx(row.cost_share.value)
        assert replayed["points"] == pytest.approx(row.points.value)


def test_one_sample_a_question_is_refused_with_the_way_to_more(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", num_questions=3, num_samples=1)
    for command in (("tune", log), ("replay", log, "--config", "configs:majority_vote")):
        refused = run(*command)
        assert refused.exit_code == 2
        assert "each question has one sample, but rules need several" in refused.output
        assert "eval --epochs 8" in refused.output


def test_votes_that_a_rule_ended_are_refused_with_the_way_to_record_all(tmp_path: Path) -> None:
    source, early, whole = (tmp_path / name for name in ("stack.yaml", "early", "whole"))
    sample = {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 1.0}}}
    vote = {"type": "MajorityVoteController", "args": {"default_sample_num": 16, "generation_controller": sample}}
    worker = {"type": "ScriptedWorker", "args": {"respond": "\\boxed{7}"}}
    source.write_text(json.dumps({"controller": vote, "workers": {"generation": worker}}))
    (tmp_path / "data.jsonl").write_text('{"question": "How many?", "answer": "7"}\n')
    record = ("eval", "--dataset", tmp_path / "data.jsonl", "--keep_samples", "--output_path")
    assert run(*record, early, "--config", source).exit_code == 0
    refused = run("tune", early, "--output_path", tmp_path / "tuned.yaml")
    assert refused.exit_code == 2
    told = " ".join(refused.output.split())
    assert re.search(r"1 votes ended early, with \d of 16 samples", told)
    assert not (tmp_path / "tuned.yaml").exists()
    (advised,) = re.findall(r"scaffolding-ext (eval .*) --output_path NEW_FOLDER", told)
    assert run(*advised.split(), "--output_path", whole).exit_code == 0
    assert read_recording([whole]).num_samples == 16


def test_samples_that_not_all_questions_have_are_counted(log: Path, tmp_path: Path) -> None:
    longer = tmp_path / "longer.jsonl"
    first, rest = log.read_text().split("\n", 1)
    question = json.loads(first)
    longer.write_text(f"{json.dumps({**question, 'samples': question['samples'] * 2})}\n{rest}")
    told = " ".join(run("tune", longer).stdout.split())
    assert "Left out: samples after the first 4 of 1 questions, which have up to 8." in told


def test_a_long_tuning_says_on_stderr_what_it_does(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[Any] = []
    played = Replay.try_all

    @contextlib.contextmanager
    def beating(beat: Any, show: Any) -> Iterator[None]:
        beats.append(lambda: show(beat()))
        beats[0]()
        yield

    def try_all(plays: Replay) -> None:
        beats[0]()
        played(plays)

    assert run("tune", log).stderr == ""
    monkeypatch.setattr("scaffolding_ext.evaluation.run.progress_bar.beating", beating)
    monkeypatch.setattr(Replay, "try_all", try_all)
    assert run("tune", log).stderr.splitlines() == ["reading the logs", "playing settings on 60 questions"]


def test_many_samples_without_an_answer_are_said(log: Path, tmp_path: Path) -> None:
    silent = tmp_path / "silent.jsonl"
    longer = write_log(tmp_path / "longer.jsonl", num_samples=6)
    rows = [json.loads(line) for line in longer.read_text().splitlines()]
    for row in rows:
        for sample in row["samples"][2:]:
            sample["answer"] = None
    silent.write_text("\n".join(map(json.dumps, rows)))
    said = "240 of 360 samples have no answer: if they were cut off, raise max_tokens."
    assert said in " ".join(run("tune", silent).stdout.split())
    assert "have no answer" not in run("tune", log).stdout


def test_a_line_that_beats_the_choice_on_both_is_named(log: Path) -> None:
    plays = Replay(read_recording([log]))
    plays.try_all()
    found = tuned(plays, Cheapest(0.003))
    assert found is not None
    *others, own = found.rows
    figures = {"cost_share": Estimate(0.5, 0.4, 0.6), "points": Estimate(-1.0, -2.0, 0.0)}
    better = {"cost_share": Estimate(0.4, 0.3, 0.5), "points": Estimate(-0.5, -1.0, 0.0)}

    def advice(**beaten_by: Estimate) -> str:
        rows = [row._replace(**(beaten_by if row.name.startswith("Adaptive") else figures)) for row in others]
        return " ".join(dataclasses.replace(found, rows=[*rows, own._replace(**figures)]).advice)

    assert "On these questions Adaptive-Consistency .90 does better on both." in advice(**better)
    for name in better:
        assert "better on both" not in advice(**{**better, name: figures[name]})


def test_figures_without_an_interval_have_none(log: Path) -> None:
    first = run("tune", log).stdout.splitlines()[1]
    assert re.fullmatch(r"ask 4 times +[\d.]+ +\+0\.0 +100 +1\.0", first)


def test_no_promise_by_silence(log: Path, tmp_path: Path) -> None:
    stack = tmp_path / "stack.yaml"
    result = run("tune", log, "--confidence", 0.9, "--max_loss", 2, "--output_path", stack)
    assert result.exit_code == 1
    told = " ".join(result.stderr.split())
    assert "nothing promises at most 2 points lost" in told
    assert "the test needs at least 163 questions" in told
    assert "Advice: ask 4 times and vote. No setting keeps the promise." in result.stdout
    assert not stack.exists()


def test_a_promise_stands_in_the_stack(tmp_path: Path) -> None:
    log, stack = write_log(tmp_path / "log.jsonl", 150), tmp_path / "stack.yaml"
    result = run("tune", log, "--confidence", 0.9, "--max_loss", 5, "--output_path", stack)
    assert result.exit_code == 0, result.output
    tuned = load_config(stack).tuned
    assert tuned is not None
    assert tuned.promise is not None
    assert "at most 5 points lost, with a confidence of 0.9" in tuned.promise


def test_samples_are_counted_where_there_are_no_tokens(tmp_path: Path) -> None:
    result = run("tune", write_log(tmp_path / "log.jsonl", 20, output_tokens=None))
    assert result.exit_code == 0, result.output
    assert "samples %" in result.stdout
    assert "No tokens: samples are counted instead." in result.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--budget", "much"], "invalid budget 'much'"),
        (["--budget", "25%", "--confidence", "0.9"], "--confidence needs"),
        (["--budget", "0.1%"], "--budget is too small for any setting; the cheapest needs"),
        (["--cost", "seconds"], "the recording has no seconds"),
        (["--cost", "dollars"], "give 3 numbers, such as 0.5,0.05,2"),
        (["--cost", "1,2"], "give 3 numbers, such as 0.5,0.05,2"),
    ],
)
def test_wrong_options_say_what_is_allowed(log: Path, options: list[str], told: str) -> None:
    result = run("tune", log, *options)
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())


def test_a_budget_and_prices_and_seconds(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", 20, seconds=2.5)
    for options in (["--budget", "25%"], ["--cost", "1,0.1,5"], ["--cost", "seconds"]):
        result = run("tune", log, *options, "--json")
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["chosen"]["cost_share"] <= 1


def test_a_budget_of_tokens_is_one_of_as_large_a_share(tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl", 20)
    samples = (sample for line in log.read_text().splitlines() for sample in json.loads(line)["samples"])
    total = sum(sample["output_tokens"] for sample in samples)
    share, tokens = (run("tune", log, "--json", "--budget", each).stdout for each in ("50%", total / 2))
    assert share == tokens
    assert json.loads(share)["chosen"]["cost_share"] < 1


def test_a_stack_that_cannot_be_replayed_is_refused(log: Path) -> None:
    for stack, why in {
        "configs:kv_share_branching": "is a KVShareBranchingController; replay plays NativeGenerationController",
        "configs:search": "is a SearchController; replay plays NativeGenerationController",
    }.items():
        result = run("replay", log, "--config", stack)
        assert result.exit_code == 2
        assert why in " ".join(result.output.split())


def test_the_page_holds_the_picture(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "tuned.html"
    result = run("tune", log, "--report_path", page)
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert "Adaptive-Consistency .90" in text
    assert "http" not in text.replace("http-equiv", "")  # it asks the network for nothing
    assert "data:image/png;base64,iVBORw0KGgo" in text


@pytest.mark.slow
def test_eval_records_a_stack_with_probes_for_tune_and_records_nothing_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    store, stack = tmp_path / "recorded", tmp_path / "stack.yaml"
    options = [
        "--config",
        "configs:dynasor_cot",
        "--limit",
        3,
        "--epochs",
        2,
        "--probe_every",
        64,
        "--output_path",
        store,
    ]
    recorded = run("eval", *options)
    assert recorded.exit_code == 0, recorded.output
    written = (store / "samples.jsonl").read_bytes()
    again = run("eval", *options, "--resume")
    assert again.exit_code == 0, again.output
    assert (store / "samples.jsonl").read_bytes() == written
    found = run("tune", store, "--output_path", stack, "--budget", "60%", "--json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert (told["num_questions"], "probes" in told["missing"]) == (3, False)
    own = load_config(stack)
    assert own.workers["generation"].args["model"] == "tinylm/target"
    assert "RecordChainController" not in stack.read_text(), "the stack runs, it records nothing"
