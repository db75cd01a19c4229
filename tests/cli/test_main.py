"""The command line end to end on scripted workers: what goes where, and with which exit code."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from scaffolding_ext import __version__
from scaffolding_ext.cli.main import main
from scaffolding_ext.documents import packaged_recipes, packaged_stacks
from scaffolding_ext.evaluation.run.records import read_records
from scaffolding_ext.stack.load import load_config

HELPERS = """
from scaffolding_ext.errors import EngineError
from scaffolding_ext.testing import ScriptedWorker

class Sayer(ScriptedWorker):
    def __init__(self):
        super().__init__(respond)

def respond(task):
    word = task.input_str.split()[-1]
    if word == "fail":
        raise EngineError("the engine is gone")
    return f"It is \\\\boxed{{{word}}}."

class Unbuildable(ScriptedWorker):
    def __init__(self):
        raise OSError("built")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stack, a dataset of four rows of which one fails and one is wrong, and a worker's module."""
    (tmp_path / "cli_helpers.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "cli_helpers", raising=False)
    stack = {
        "controller": {"type": "NativeGenerationController"},
        "workers": {"generation": {"type": "cli_helpers:Sayer"}},
    }
    (tmp_path / "stack.yaml").write_text(json.dumps(stack))
    rows = [("say 1", 1), ("say 2", 2), ("say 3", 4), ("say fail", 5)]
    lines = [json.dumps({"id": f"row{i}", "question": q, "answer": a}) for i, (q, a) in enumerate(rows)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# ---- run


def test_run_prints_completion_answer_reason_and_tokens(folder: Path) -> None:
    result = call("run", "say 7", "--config", "stack.yaml")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "It is \\boxed{7}.",
        "",
        "answer       7",
        "exit reason  end",
        "prompt       0 decoded, 5 prefilled, 0 reused",
        "chain        16 decoded, 0 prefilled, 0 reused",
    ]


def test_run_says_what_a_vote_drew_and_saved(folder: Path) -> None:
    vote = {"type": "MajorityVoteController", "args": {"default_sample_num": 16}}
    vote["args"]["generation_controller"] = {"type": "NativeGenerationController"}  # type: ignore[index]
    result = call("run", "say 7", "--config", "stack.yaml", "--set", f"controller={json.dumps(vote)}")
    assert re.search(r"^drawn        (\d) of 16 answers, \d\d % saved$", result.stdout, re.MULTILINE)


def test_run_json_is_one_document(folder: Path) -> None:
    result = call("run", "say 7", "--config", "stack.yaml", "--json", "--seed", "4")
    document = json.loads(result.stdout)
    assert (document["text"], document["answer"], document["exit_reason"]) == ("It is \\boxed{7}.", "7", "end")
    assert document["ledger"]["total"]["decoded"] == 16
    assert (
        document["seed"]
        == json.loads(call("run", "say 7", "--config", "stack.yaml", "--json", "--seed", "4").stdout)["seed"]
    )


def test_run_takes_a_packaged_name(folder: Path) -> None:
    sets = ["workers.generation={type: cli_helpers:Sayer}", "controller.args.rule=consecutive"]
    result = call("run", "say 7", "--config", "configs:dynasor_cot", "--set", sets[0], "--set", sets[1])
    assert result.exit_code == 0
    assert "answer       7" in result.stdout


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "say 7", "--config", "none.yaml"], "Error: cannot read the stack file none.yaml"),
        (["run", "say 7", "--config", "stack.yaml", "--set", "controller.type=X"], "Error: controller.type: unknown"),
        (["run", "say fail", "--config", "stack.yaml"], "Error: GenerationTask for worker 'generation' (Sayer) failed"),
        (["eval", "--config", "stack.yaml"], "Error: dataset: is missing"),
        (["eval", "--config", "stack.yaml", "--dataset", "no.jsonl"], "Error: cannot read the dataset no.jsonl"),
        (["eval", "--config", "stack.yaml", "--dataset", "data.jsonl", "--limit", "x"], "Error: limit is 'x'"),
    ],
)
def test_package_errors_are_one_line_on_standard_error(
    folder: Path, arguments: list[str], message: str, json_flag: list[str]
) -> None:
    result = call(*arguments, *json_flag)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1


# ---- eval


def test_eval_writes_samples_summary_and_the_effective_stack(folder: Path) -> None:
    arguments = ["--dataset", "data.jsonl", "--limit", "3", "--epochs", "2", "--seed", "5", "--output_path", "runs/a"]
    result = call("eval", "--config", "stack.yaml", "--max_parallel_requests", "2", *arguments)
    assert result.exit_code == 0
    assert (
        result.stdout.splitlines()[0] == "stack: 4 of 6 right, 66.7 (20.8 to 93.9) %"
    )  # of three questions, two epochs each
    assert result.stdout.splitlines()[-1] == "kept in runs/a; summary.json has all figures"
    assert len(result.stdout.splitlines()) <= 8
    records = read_records(folder / "runs/a/samples.jsonl")
    rows = [("row0", True), ("row1", True), ("row2", False)]
    assert sorted((r.id, r.epoch, r.correct) for r in records) == [
        (name, e, right) for name, right in rows for e in (0, 1)
    ]
    document = json.loads((folder / "runs/a/summary.json").read_text())
    assert (document["version"], document["seed"], document["epochs"], document["limit"]) == (__version__, 5, 2, "3")
    assert document["summary"]["accuracy"] == pytest.approx(2 / 3)
    config = load_config(folder / "runs/a/config.yaml")
    assert (config.seed, config.max_parallel_requests) == (5, 2)
    assert config.dataset is not None
    assert config.dataset.source == "data.jsonl"


NOTHING_KEPT = "Note: this run is not saved; --output_path FOLDER saves its records, summary and stack.\n"


def test_a_run_that_keeps_nothing_says_so(folder: Path) -> None:
    arguments = ["eval", "--config", "stack.yaml", "--dataset", "data.jsonl", "--limit", "1"]
    assert call(*arguments).stderr.startswith(NOTHING_KEPT)
    assert "Note" not in call(*arguments, "--dry_run").stderr
    assert "Note" not in call(*arguments, "--output_path", "a").stderr


def test_where_most_outputs_state_no_answer_the_keys_that_ask_for_one_are_named(folder: Path) -> None:
    arguments = ["eval", "--config", "stack.yaml", "--dataset", "data.jsonl", "--limit", "3"]
    worker = "workers.generation={type: ScriptedWorker, args: {respond: 'So it is 7, I think.'}}"
    warning = "Warning: 3 of 3 finished outputs state no answer"
    assert warning in (told := call(*arguments, "--set", worker).stderr)
    assert "prompt.prompt_suffix" in told
    assert "prompt.family" in told
    assert "state no answer" not in call(*arguments).stderr


def test_a_module_that_is_not_found_names_pythonpath(folder: Path) -> None:
    result = call("run", "say 1", "--config", "stack.yaml", "--set", "controller.type=my_rule:Mine")
    assert result.exit_code == 2
    assert "controller.type: cannot import 'my_rule:Mine': No module named 'my_rule'" in result.stderr
    assert f"PYTHONPATH={folder} finds my_rule.py in the current folder" in result.stderr


def test_the_written_stack_runs_again_with_the_same_seeds(folder: Path) -> None:
    call("eval", "--config", "stack.yaml", "--dataset", "data.jsonl", "--limit", "2", "--output_path", "a")
    call("eval", "--config", "a/config.yaml", "--limit", "2", "--output_path", "b")
    first, second = (sorted((r.id, r.seed) for r in read_records(folder / name / "samples.jsonl")) for name in "ab")
    assert first == second
    assert all(seed is not None for _, seed in first)


def test_eval_json_is_one_document_and_progress_goes_elsewhere(folder: Path) -> None:
    result = call("eval", "--config", "stack.yaml", "--dataset", "data.jsonl", "--limit", "3", "--json")
    document = json.loads(result.stdout)
    assert document["summary"]["num_correct"] == 2
    assert document["dataset"]["source"] == "data.jsonl"
    assert result.stderr.splitlines()[-1] == "3 of 3 done, 66.7% right, 48 tokens, 0 failed"


@pytest.mark.parametrize(("allowed", "exit_code"), [(None, 1), ("0.2", 1), ("0.25", 0), ("1", 0)])
def test_more_failures_than_allowed_are_exit_code_1(folder: Path, allowed: str | None, exit_code: int) -> None:
    options = [] if allowed is None else ["--set", f"evaluation.fail_on_error={allowed}"]
    result = call("eval", "--config", "stack.yaml", "--dataset", "data.jsonl", "--output_path", "a", "--json", *options)
    assert result.exit_code == exit_code
    assert ("1 of 4 requests failed" in result.stderr) == bool(exit_code)
    assert json.loads(result.stdout)["summary"]["errors"] == {"TaskError": 1}  # told in either case
    assert len(read_records(folder / "a/samples.jsonl")) == 4


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_a_dry_run_checks_and_builds_nothing(folder: Path, json_flag: list[str]) -> None:
    worker = "workers.generation.type=cli_helpers:Unbuildable"
    arguments = ["eval", "--config", "stack.yaml", "--set", worker, "--output_path", "a", "--dry_run", *json_flag]
    result = call(*arguments, "--dataset", "data.jsonl", "--epochs", "2")
    assert result.exit_code == 0
    assert not (folder / "a").exists()
    if json_flag:
        document = json.loads(result.stdout)
        assert (document["num_samples"], document["config"]["seed"]) == (4, 0)
    else:
        assert result.stdout.startswith("stack and dataset are fine: 4 questions, 8 requests\ntokens of chains: ")
    assert call(*arguments, "--set", "controller.args.x=1", "--dataset", "data.jsonl").exit_code == 2


def test_a_dry_run_shows_the_first_question_as_asked_its_answer_and_what_is_not_read(folder: Path) -> None:
    row = {"question": "How many?", "passage": "Two cats.", "answer": "2", "hint": "count", "level": 1}
    (folder / "cats.jsonl").write_text(json.dumps(row))
    arguments = ["eval", "--config", "stack.yaml", "--dataset", "cats.jsonl", "--dry_run"]
    result = call(*arguments, "--set", 'prompt.prompt_suffix=" Think."')
    assert result.stdout == (
        "stack and dataset are fine: 1 questions, 1 requests\n"
        "tokens of chains: no known limit\n\nThe first question, as it is asked:\n"
        "  Two cats.\n\n  How many? Think.\nIts right answer: 2\nNot read: hint, level\n"
    )
    first = json.loads(call(*arguments, "--json").stdout)["first"]
    assert first == {"prompt": "Two cats.\n\nHow many?", "target": "2", "unread": ["hint", "level"]}


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("native", 80),
        ("majority_vote", 1280),
        ("dynasor_cot", 80),
    ],
)
def test_max_tokens_limits_the_innermost_controller_and_the_dry_run_says_the_most(
    folder: Path, name: str, most: int
) -> None:
    arguments = ["--dataset", "data.jsonl", "--epochs", "2", "--max_tokens", "10", "--dry_run", "--json"]
    result = call("eval", "--config", f"configs:{name}", *arguments)
    assert json.loads(result.stdout)["most_tokens"] == most


def test_runs_do_not_mix_in_one_folder(folder: Path) -> None:
    arguments = ["eval", "--config", "stack.yaml", "--dataset", "data.jsonl", "--limit", "1", "--output_path", "a"]
    assert call(*arguments).exit_code == 0
    again = call(*arguments)
    assert (again.exit_code, again.stdout) == (2, "")
    assert "runs do not mix" in again.stderr
    assert len(read_records(folder / "a/samples.jsonl")) == 1


def test_an_output_path_that_cannot_be_written_is_refused_before_anything_is_built(folder: Path) -> None:
    worker = "workers.generation.type=cli_helpers:Unbuildable"
    arguments = ["--config", "stack.yaml", "--dataset", "data.jsonl", "--set", worker]
    result = call("eval", *arguments, "--output_path", "stack.yaml/runs")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot write into stack.yaml/runs" in result.stderr
    assert "built" not in result.stderr


def test_a_dry_run_finds_what_a_controllers_constructor_refuses(folder: Path) -> None:
    (folder / "cli_pattern.py").write_text(
        "import re\n"
        "from scaffolding_ext import NativeGenerationController\n"
        "class Pattern(NativeGenerationController):\n"
        "    def __init__(self, pattern: str, **kwargs):\n"
        "        super().__init__(**kwargs)\n"
        "        self.pattern = re.compile(pattern)\n"
    )
    arguments = ["eval", "--config", "stack.yaml", "--dataset", "data.jsonl", "--dry_run"]
    pattern = "controller={type: cli_pattern:Pattern, args: {pattern: '(', sampling_params: {temperature: 1}}}"
    result = call(*arguments, "--set", pattern)
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: controller.args: cli_pattern:Pattern cannot be built: ")
    assert call(*arguments, "--set", pattern.replace("'('", "'x'")).exit_code == 0
    misspelt = pattern.replace("sampling_params: {temperature: 1}", "streamin: true")
    assert "did you mean 'streaming'" in call(*arguments, "--set", misspelt).stderr


def test_a_stack_that_cannot_be_built_leaves_no_folder(folder: Path) -> None:
    worker = "workers.generation.type=cli_helpers:Unbuildable"
    arguments = ["--dataset", "data.jsonl", "--output_path", "a", "--set", worker]
    assert call("eval", "--config", "stack.yaml", *arguments).exit_code == 2
    assert not (folder / "a").exists()


def test_a_slow_request_fails_by_its_time_out(folder: Path) -> None:
    (folder / "cli_slow.py").write_text(
        "import asyncio\n"
        "from scaffolding_ext.testing import ScriptedWorker\n"
        "async def forever(task):\n    await asyncio.Event().wait()\n"
        "class Slow(ScriptedWorker):\n    def __init__(self):\n        super().__init__('', before=forever)\n"
    )
    slow = ["--config", "stack.yaml", "--set", "workers.generation.type=cli_slow:Slow"]
    ran = call("run", "say 1", *slow, "--timeout", "0.01")
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1)
    evaluated = call("eval", *slow, "--dataset", "data.jsonl", "--set", "evaluation.request_timeout=0.01", "--json")
    assert evaluated.exit_code == 1
    assert json.loads(evaluated.stdout)["summary"]["errors"] == {"RequestTimeoutError": 4}


def test_the_first_error_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # narrower, the line would be broken
    arguments = ["eval", "--config", "stack.yaml", "--dataset", "data.jsonl"]
    assert "first failure: row3: GenerationTask for worker 'generation' (Sayer)" in call(*arguments).stdout
    first = json.loads(call(*arguments, "--json").stdout)["first_error"]
    assert first.startswith("row3: GenerationTask for worker")
    assert json.loads(call(*arguments, "--json", "--limit", "2").stdout)["first_error"] is None


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_a_dry_run_finds_that_a_package_is_missing(monkeypatch: pytest.MonkeyPatch, json_flag: list[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    result = call("eval", "--config", "configs:native", "--dry_run", *json_flag)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: torch is not installed")


# ---- all commands


def test_the_packaged_stacks_are_listed_one_a_line() -> None:
    lines = call("stacks").stdout.splitlines()
    names = [line.split()[0] for line in lines]
    assert names == [f"configs:{name}" for name in packaged_stacks() | packaged_recipes()]
    assert all(len(line.split(maxsplit=1)[1]) > 5 for line in lines)
    assert json.loads(call("stacks", "--json").stdout)["configs:native"].startswith("Plain generation")


def test_the_time_of_a_run_includes_the_start_of_its_workers(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it accepts and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/v1"
        own = ["--config", "configs:native", "--model", "x", "--base_url", url]
        result = call("run", "2+2?", *own, "--set", "workers.generation.args.max_retries=0", "--timeout", "0.2")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: the server at {url} did not answer within 0.2 s")
    for thread in threading.enumerate():  # where a program would end, this process goes on
        if thread.name == "start":
            thread.join()


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scaffolding_ext", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"scaffolding-ext, version {__version__}\n"


def test_other_errors_keep_their_traceback(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("scaffolding_ext.stack.build.build_stack", broken)
    assert isinstance(CliRunner().invoke(main, ["run", "x", "--config", "stack.yaml"]).exception, ZeroDivisionError)
