"""Wrong input on the command line is one line with a name in it, at once, and nothing of the user's is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scaffolding_ext.cli.main import main
from scaffolding_ext.evaluation.run.records import read_records

STACK = {
    "controller": {"type": "NativeGenerationController"},
    "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "It is \\boxed{1}."}}},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a stack and a dataset of two rows."""
    (tmp_path / "stack.yaml").write_text(json.dumps(STACK))
    rows = [{"question": "How many?", "answer": 1}, {"question": "How much?", "answer": 2}]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


EVAL = ("eval", "--config", "stack.yaml", "--dataset", "data.jsonl")


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def program(*arguments: str, output: str = os.devnull) -> subprocess.CompletedProcess[str]:
    """The program as a process of its own, with its standard output in a file."""
    with open(output, "w") as file:
        return subprocess.run(
            [sys.executable, "-m", "scaffolding_ext", *arguments],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            check=False,
        )


# ---- nothing is lost


@pytest.mark.parametrize("name", ["config.yaml", "summary.json", "samples.jsonl"])
@pytest.mark.parametrize("dry", [[], ["--dry_run"]])
def test_files_of_the_users_own_are_not_written_over(folder: Path, name: str, dry: list[str]) -> None:
    (folder / name).write_text("mine")
    result = call(*EVAL, "--output_path", ".", *dry)
    assert result.exit_code == 2
    assert f"Error: . holds {name}; runs do not mix" in result.stderr
    assert sorted(os.listdir()) == sorted(["data.jsonl", "stack.yaml", name])
    assert (folder / name).read_text() == "mine"


def test_a_second_run_into_the_folder_of_one_that_runs_is_refused(folder: Path) -> None:
    (folder / "cli_second.py").write_text(
        "from click.testing import CliRunner\n"
        "from scaffolding_ext.cli.main import main\n"
        "from scaffolding_ext.testing import ScriptedWorker\n"
        "found = []\n"
        "class Second(ScriptedWorker):\n"
        "    def __init__(self, arguments: list):\n"  # built when the first run has its folder
        "        super().__init__('\\\\boxed{1}')\n"
        "        found.append(CliRunner().invoke(main, arguments))\n"
    )
    sys.path.insert(0, str(folder))
    try:
        second = [*EVAL, "--output_path", "run"]
        worker = json.dumps({"type": "cli_second:Second", "args": {"arguments": second}})
        assert call(*second, "--set", f"workers.generation={worker}").exit_code == 0
        (inner,) = sys.modules["cli_second"].found
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("cli_second", None)
    assert inner.exit_code == 2
    assert "run holds samples.jsonl; runs do not mix" in inner.stderr
    assert len(read_records(folder / "run" / "samples.jsonl")) == 2


@pytest.mark.parametrize(
    "options",
    [
        ["--epochs", "999999999999"],
        ["--set", "controller.args.x=1"],
        ["--limit", "9-9"],
        ["--set", "dataset.source=none.jsonl"],
        ["--dry_run"],
    ],
)
def test_a_run_that_did_not_start_leaves_no_folder(folder: Path, options: list[str]) -> None:
    call(*EVAL, "--output_path", "new/run", *options)
    assert sorted(os.listdir()) == ["data.jsonl", "stack.yaml"]
    (folder / "old").mkdir()
    call(*EVAL, "--output_path", "old", *options)
    assert os.listdir(folder / "old") == []


# ---- one line, with a name in it

NAME = "n" * 300
WRONG: dict[str, tuple[list[str], str]] = {
    "an empty output path": ([*EVAL, "--output_path", ""], "the name is empty"),
    "an output path that is a device": ([*EVAL, "--output_path", "/dev/full"], "cannot write into /dev/full"),
    "an output path of 300 characters": ([*EVAL, "--output_path", NAME], "name another --output_path"),
    "an output path that is a dangling link": ([*EVAL, "--output_path", "dangling"], "name another --output_path"),
    "epochs without end": ([*EVAL, "--epochs", "999999999999"], "epochs: is 999,999,999,999; with 2 questions"),
    "a billion samples": (
        ["eval", "--config", "stack.yaml", "--dataset", "tinylm:held_out", "--set", "dataset.num_samples=1000000000"],
        "num_samples is 1000000000; tinylm:held_out gives 1 to 100,000",
    ),
    "a time-out of inf": (["run", "x", "--config", "stack.yaml", "--timeout", "inf"], "inf is not a finite number"),
    "two stacks": ([*EVAL, "--config", "other.yaml"], "--config is given 2 times: give it once"),
    "two seeds": ([*EVAL, "--seed", "1", "--seed", "2"], "--seed is given 2 times"),
    "an empty prompt": (["run", "", "--config", "stack.yaml"], "prompt: is empty"),
    "a prompt of blanks": (["run", " \n", "--config", "stack.yaml"], "prompt: is empty"),
    "a prompt of other bytes": (["run", "\udcff", "--config", "stack.yaml"], "holds bytes that are not text"),
    "an override of other bytes": ([*EVAL, "--set", "seed=\udcff"], "the value of seed holds bytes that are not text"),
    "a deep override": ([*EVAL, "--set", "seed=" + "[" * 5000], "the value of seed is nested too deeply"),
    "a stack without end": (["run", "x", "--config", "/dev/zero"], "is longer than 1,048,576 bytes"),
    "a stack of 300 characters": (["run", "x", "--config", NAME], "cannot read the stack file"),
    "a stack that is a folder": (["run", "x", "--config", "."], "cannot read the stack file"),
    "a dangling stack": (["run", "x", "--config", "dangling"], "cannot read the stack file dangling"),
    "a deep engine config": (["engine", "check", "deep", "--config", "stack.yaml"], "nested too deeply"),
    "an output file of 300 characters": (
        ["tune", "data.jsonl", "--output_path", NAME],
        "cannot be written",
    ),
    "an output file in no folder": (
        ["tune", "data.jsonl", "--output_path", "none/a.yaml"],
        "none/a.yaml cannot be written",
    ),
    "deep samples": (
        ["tune", "deep.jsonl", "--output_path", "a.yaml"],
        "deep.jsonl, line 1: invalid JSON: it is nested too deeply",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_an_error_by_name(folder: Path, case: str) -> None:
    (folder / "dangling").symlink_to("nowhere")
    (folder / "deep").mkdir()
    (folder / "deep" / "config.json").write_text("[" * 100_000)
    (folder / "deep.jsonl").write_text("[" * 100_000)
    before = sorted(os.listdir())
    arguments, message = WRONG[case]
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert message in " ".join(last.split())
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("arguments", [["run", "x", "--config", "stack.yaml"], [*EVAL, "--json"]])
def test_an_output_that_is_full_is_an_error(folder: Path, arguments: list[str]) -> None:
    done = program(*arguments, output="/dev/full")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: cannot read or write: [Errno 28]")
    assert "Traceback" not in done.stderr


def test_a_full_disk_ends_a_run_and_keeps_what_there_is(folder: Path) -> None:
    (folder / "full.py").write_text(
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))\n"  # room for config.yaml and one record
        "from scaffolding_ext.cli.main import main\n"
        "main(sys.argv[1:])\n"
    )
    command = [sys.executable, "full.py", *EVAL, "--max_parallel_requests", "1", "--output_path", "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("Error: cannot write to run/samples.jsonl: [Errno 27]")
    assert len(read_records(folder / "run" / "samples.jsonl")) == 1


def test_the_last_line_of_a_failed_run_says_why(folder: Path) -> None:
    stack = json.loads(json.dumps(STACK))
    stack["controller"]["args"] = {"sampling_params": {"max_tokens": 1}}
    stack["workers"]["generation"] = {"type": "cli_failing:Failing"}
    (folder / "cli_failing.py").write_text(
        "from scaffolding_ext.errors import EngineError\n"
        "from scaffolding_ext.testing import ScriptedWorker\n"
        "def respond(task):\n    raise EngineError('the engine is gone')\n"
        "class Failing(ScriptedWorker):\n    def __init__(self):\n        super().__init__(respond)\n"
    )
    (folder / "stack.yaml").write_text(json.dumps(stack))
    sys.path.insert(0, str(folder))
    try:
        result = call(*EVAL)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("cli_failing", None)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("2 of 2 requests failed; the first failure: 1: ")
    assert "the engine is gone" in result.stderr.splitlines()[-1]


def test_columns_are_set_like_any_key(folder: Path) -> None:
    (folder / "data.jsonl").write_text(json.dumps({"q": "How many?", "solution": "The answer is 1", "answer": "see"}))
    columns = ["--set", "dataset.columns.prompt=q", "--set", "dataset.columns.target=solution"]
    result = call(*EVAL, *columns, "--json")
    assert json.loads(result.stdout)["summary"]["num_correct"] == 1
