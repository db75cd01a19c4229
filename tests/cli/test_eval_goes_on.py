"""Runs that are killed, interrupted and gone on with: end to end, as processes of their own where signals are sent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scaffolding_ext.cli.main import main
from scaffolding_ext.errors import OutputError
from scaffolding_ext.evaluation.run.records import Record, read_records
from scaffolding_ext.evaluation.run.run_folder import claimed, mend

NUM_SAMPLES, NUM_KILLS = 200, 8
STACK = {
    "controller": {
        "type": "DynasorCoTController",
        "args": {"chunk_size": 4, "certainty_threshold": 1, "max_tokens": 8},
    },
    "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "7} and so on"}}},
    "max_parallel_requests": 8,
    "seed": 3,
}
RUN = ("eval", "--config", "stack.yaml", "--dataset", "data.jsonl", "--output_path", "run")
SAMPLES = Path("run") / "samples.jsonl"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a stack, a dataset, and room for modules of workers."""
    (tmp_path / "stack.yaml").write_text(json.dumps(STACK))
    rows = [{"question": f"How many are {i}?", "answer": 7 if i % 3 else 8} for i in range(NUM_SAMPLES)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("cli_held", None)


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def without_times(record: Record) -> dict[str, object]:
    fields = record.to_json()
    trace = [{key: value for key, value in event.items() if key != "seconds"} for event in fields.pop("trace")]
    return {key: value for key, value in fields.items() if key != "seconds"} | {"trace": trace}


def outcomes(path: Path) -> dict[tuple[str, int], dict[str, object]]:
    """Everything but times; fails where a record stands twice."""
    records = read_records(path)
    found = {(record.id, record.epoch): without_times(record) for record in records}
    assert len(found) == len(records)
    return found


# Starts the command as often as it is killed, in a child whose modules are there already, and kills it at once when the
# file has grown by a random number of bytes. Should the killer be late, the child kills itself a little later.
KILLER = """
import os, random, signal, sys
from pathlib import Path
import scaffolding_ext.cli.main, scaffolding_ext.evaluation.run.session, scaffolding_ext.controllers.chain.dynasor_cot
import scaffolding_ext.testing
from scaffolding_ext.evaluation.run import records
samples, rng = Path("run/samples.jsonl"), random.Random(int(sys.argv[1]))
json_text = records.json_text

def size():
    return samples.stat().st_size if samples.exists() else 0

def written_or_killed(document):
    if size() > until + 8000:  # so that all kills write less than all samples
        os.kill(os.getpid(), signal.SIGKILL)
    return json_text(document)

for kill in range(int(sys.argv[2])):
    until = size() + rng.randrange(6000)
    child = os.fork()
    if child == 0:
        records.json_text = written_or_killed
        for output in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        scaffolding_ext.cli.main.main(sys.argv[3:])
    ended = 0
    while size() < until and not ended:
        ended = os.waitpid(child, os.WNOHANG)[0]
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    print(size())
"""


def test_a_run_killed_at_eight_moments_loses_nothing_and_repeats_nothing(folder: Path) -> None:
    arguments = [*RUN, "--resume"]
    command = [sys.executable, "-W", "ignore", "-c", KILLER, "0", str(NUM_KILLS), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    sizes = [int(line) for line in done.stdout.splitlines()]
    assert len(sizes) == NUM_KILLS
    assert sizes == sorted(sizes)  # what was on disk stays there
    assert len(set(sizes)) > NUM_KILLS // 2
    killed = SAMPLES.read_bytes()
    finished = outcomes(SAMPLES)
    assert 0 < len(finished) < NUM_SAMPLES
    assert call(*arguments).exit_code == 0
    assert SAMPLES.read_bytes().startswith(killed)
    assert call(*RUN[:-1], "whole").exit_code == 0
    assert outcomes(SAMPLES) == outcomes(Path("whole") / "samples.jsonl")
    summaries = [json.loads((Path(name) / "summary.json").read_text()) for name in ("run", "whole")]
    counted = [{key: value for key, value in each["summary"].items() if "second" not in key} for each in summaries]
    for each in counted:
        each["jobs"] = {key: each["jobs"][key] for key in ("num", "tokens")}  # the others are times
    assert counted[0] == counted[1]


def test_two_runs_one_at_a_time_are_the_same_bytes_but_for_times(folder: Path) -> None:
    one_at_a_time = ["--max_parallel_requests", "1", "--limit", "20"]
    for name in ("a", "b"):
        assert call(*RUN[:-1], name, *one_at_a_time).exit_code == 0
    first, second = (
        [json.dumps(without_times(record)) for record in read_records(f"{name}/samples.jsonl")] for name in "ab"
    )
    assert first == second
    fingerprints = {json.loads(Path(f"{name}/summary.json").read_text())["fingerprint"] for name in "ab"}
    assert len(fingerprints) == 1


def test_epochs_and_samples_may_become_more(folder: Path) -> None:
    assert call(*RUN, "--limit", "3").exit_code == 0
    before = SAMPLES.read_bytes()
    result = call(*RUN, "--limit", "5", "--epochs", "2", "--resume", "--json")
    assert SAMPLES.read_bytes().startswith(before)
    assert sorted(outcomes(SAMPLES)) == sorted((str(i), epoch) for i in range(1, 6) for epoch in (0, 1))
    assert json.loads(result.stdout)["summary"]["mean_at_n"]["n"] == 2
    fewer = call(*RUN, "--limit", "5", "--resume")
    assert fewer.exit_code == 2
    assert fewer.stderr.startswith("Error: evaluation.epochs: leaves out '1' in epoch 1, which the run in run has")


ONCE = """
from scaffolding_ext.testing import ScriptedWorker

class Once(ScriptedWorker):
    def __init__(self):
        super().__init__("7} and so on")
        open("built", "x").close()
"""


def test_a_run_that_is_done_loads_no_model(folder: Path) -> None:
    (folder / "cli_held.py").write_text(ONCE)
    worker = ["--set", "workers.generation={type: cli_held:Once}"]
    call(*RUN, "--limit", "3", *worker)
    before = SAMPLES.read_bytes()
    assert call(*RUN, "--limit", "4", "--resume", *worker).exit_code == 2  # it cannot be built again
    result = call(*RUN, "--limit", "3", "--resume", "--json", *worker)
    assert (result.exit_code, result.stderr) == (0, "")
    assert SAMPLES.read_bytes() == before
    assert json.loads(result.stdout)["summary"]["num_samples"] == 3


FAILS_WHILE_DOWN = """
import os
from scaffolding_ext.testing import ScriptedWorker

async def before(task):
    if os.path.exists("down") and "2" in task.input_str:
        raise ConnectionError("the server is gone")

class Down(ScriptedWorker):
    def __init__(self):
        super().__init__("7} and so on", before=before)
"""


def test_samples_that_failed_with_their_server_are_run_again(folder: Path) -> None:
    (folder / "cli_held.py").write_text(FAILS_WHILE_DOWN)
    command = (*RUN, "--limit", "30", "--set", "workers.generation={type: cli_held:Down}")
    (folder / "down").touch()
    failed = call(*command)
    assert failed.exit_code == 1
    assert "12 of 30 requests failed" in failed.stderr
    assert failed.stderr.endswith("give the same command with --resume.\n")
    assert "12 of 30 requests failed" in call(*command, "--resume").stderr  # the server is still down
    (folder / "down").unlink()
    assert len(read_records(SAMPLES)) == 30
    assert call(*command, "--resume", "--dry_run").exit_code == 0
    assert len(read_records(SAMPLES)) == 30  # a dry run changes nothing
    mended = call(*command, "--resume", "--json")
    assert mended.exit_code == 0, mended.stderr
    assert json.loads(mended.stdout)["summary"]["num_failed"] == 0
    again = call(*command[:6], "whole", *command[7:])
    assert again.exit_code == 0
    assert outcomes(SAMPLES) == outcomes(Path("whole") / "samples.jsonl")
    before = SAMPLES.read_bytes()
    assert call(*command, "--resume").exit_code == 0
    assert SAMPLES.read_bytes() == before


def test_a_folder_whose_failed_records_are_taken_out_is_still_held(folder: Path) -> None:
    (folder / "cli_held.py").write_text(FAILS_WHILE_DOWN)
    (folder / "down").touch()
    call(*RUN, "--limit", "3", "--set", "workers.generation={type: cli_held:Down}")
    with claimed(Path("run"), resume=True):
        mend(SAMPLES, keeps_failed=False)
        assert [record.id for record in read_records(SAMPLES)] == ["1", "2"]
        with pytest.raises(OutputError, match="another process runs in run"), claimed(Path("run"), resume=True):
            pass


def test_a_torn_line_is_mended_with_a_warning(folder: Path) -> None:
    call(*RUN, "--limit", "4", "--max_parallel_requests", "1")
    whole = outcomes(SAMPLES)
    SAMPLES.write_bytes(SAMPLES.read_bytes()[:-30])
    dry = call(*RUN, "--limit", "4", "--resume", "--dry_run")
    assert dry.stdout.startswith("stack and dataset are fine: 4 questions, 4 requests, 3 of them done\n")
    result = call(*RUN, "--limit", "4", "--resume")
    assert "Warning: run/samples.jsonl, line 4: skipped, because it is incomplete" in result.stderr
    assert outcomes(SAMPLES) == whole


def test_resume_begins_where_there_is_nothing_and_needs_a_folder(folder: Path) -> None:
    assert call(*RUN, "--limit", "1", "--resume").exit_code == 0
    assert len(outcomes(SAMPLES)) == 1
    result = call(*RUN[:-2], "--resume")
    assert result.exit_code == 2
    assert "--resume is given without a folder: name the run's folder with --output_path" in result.stderr


def test_one_yaml_says_all(folder: Path) -> None:
    evaluation = {"limit": "2-3", "epochs": 2, "output_path": "run", "price": {"decoded": 2}, "fail_on_error": 1}
    (folder / "one.yaml").write_text(json.dumps({**STACK, "dataset": "data.jsonl", "evaluation": evaluation}))
    assert call("eval", "--config", "one.yaml").exit_code == 0
    assert sorted(outcomes(SAMPLES)) == [("2", 0), ("2", 1), ("3", 0), ("3", 1)]
    document = json.loads((folder / "run" / "summary.json").read_text())
    assert (document["state"], document["price"]) == ("finished", {"decoded": 2.0})
    assert document["summary"]["cost"]["total"] > 0
    again = call("eval", "--config", "run/config.yaml", "--output_path", "run", "--resume", "--dry_run")
    assert again.stdout.startswith("stack and dataset are fine: 2 questions, 4 requests, 4 of them done\n")


def test_an_interrupt_while_the_stack_is_built_leaves_no_folder(folder: Path) -> None:
    (folder / "cli_held.py").write_text(
        "from scaffolding_ext.testing import ScriptedWorker\n"
        "class Interrupted(ScriptedWorker):\n    def __init__(self):\n        raise KeyboardInterrupt\n"
    )
    result = call(*RUN, "--set", "workers.generation={type: cli_held:Interrupted}")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (130, "Aborted!")
    assert not Path("run").exists()


# ---- signals

HELD = """
import asyncio, os
from scaffolding_ext.testing import ScriptedWorker

is_held = False

async def before(task):
    global is_held
    if "How many are 3?" in task.input_str:
        is_held = True
        os.write(1, b"held\\n")
    while is_held and not os.path.exists("go"):
        await asyncio.sleep(0.01)

class Held(ScriptedWorker):
    def __init__(self):
        super().__init__("7} and so on", before=before)
"""


@pytest.fixture
def held(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A run that holds its fourth sample, and all after it, until there is a file named `go`; two requests at once."""
    (folder / "cli_held.py").write_text(HELD)
    arguments = [*RUN, "--set", "workers.generation={type: cli_held:Held}", "--max_parallel_requests", "2", "--json"]
    command = [sys.executable, "-m", "scaffolding_ext", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def read_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"it never said {text!r}")


def document_of(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    return json.loads([line for line in process.stdout if line.startswith("{")][-1])  # type: ignore[no-any-return]


def test_an_interrupt_lets_what_is_in_flight_end(folder: Path, held: subprocess.Popen[str]) -> None:
    held.send_signal(signal.SIGINT)
    read_until(held, "finishing requests in flight")
    (folder / "go").touch()
    document = document_of(held)
    num_done = len(outcomes(SAMPLES))
    read_until(
        held,
        f"Interrupted after {num_done} requests of {NUM_SAMPLES} questions, {NUM_SAMPLES} requests; to continue, give "
        "the same command with --resume",
    )
    assert held.wait() == 130
    assert document["state"] == "interrupted"
    done = outcomes(SAMPLES)
    assert ("4", 0) in done
    assert len(done) < NUM_SAMPLES
    assert json.loads((folder / "run" / "summary.json").read_text()) == document


def test_an_interrupt_of_the_last_requests_is_no_interruption(folder: Path) -> None:
    (folder / "cli_held.py").write_text(HELD)
    worker = ("--set", "workers.generation={type: cli_held:Held}")
    command = [sys.executable, "-m", "scaffolding_ext", *RUN, *worker, "--limit", "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGINT)
        read_until(process, "finishing requests in flight")
        (folder / "go").touch()
        assert process.wait() == 0
        assert process.stderr is not None
        assert "Interrupted" not in process.stderr.read()
    assert json.loads((folder / "run" / "summary.json").read_text())["state"] == "finished"


def test_a_second_interrupt_does_not_wait(folder: Path, held: subprocess.Popen[str]) -> None:
    second = call(*RUN, "--resume")
    assert (second.exit_code, second.stdout) == (2, "")
    assert second.stderr.startswith("Error: another process runs in run; wait for it")
    held.send_signal(signal.SIGINT)
    read_until(held, "finishing requests in flight")
    held.send_signal(signal.SIGINT)
    assert document_of(held)["state"] == "interrupted"
    assert held.wait() == 130
    done = outcomes(SAMPLES)
    assert ("4", 0) not in done
    assert call(*RUN, "--resume").exit_code == 2  # the worker is another
    result = call(*RUN, "--set", "workers.generation={type: cli_held:Held}", "--dry_run", "--resume")
    assert f"{len(done)} of them done" in result.stdout
