"""`eval --total_tokens`: one budget for all votes of a data set, spent in the same order however it is run."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from scaffolding_ext.cli.main import main
from scaffolding_ext.evaluation.compare.finished_run import read_run
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.run.records import Record, read_records

NUM_QUESTIONS, BUDGET = 20, 4000
# Its answers depend on question and seed: the first questions are settled, the last are guessed. Tasks that are served
# side by side end in an order of their own.
GUESSING = r"""
import asyncio, random
from scaffolding_ext.testing import ScriptedWorker

def respond(task):
    number = int(task.input_str.split()[-1])
    rng = random.Random(f"{number} {task.seed}")
    if number == 13 and rng.random() < 0.3:
        raise RuntimeError("gone")
    answer = 7 if rng.random() > number / 20 else rng.randrange(4)
    return "." * rng.randrange(40) + rf"\boxed{{{answer}}}"

async def before(task):
    for _ in range(task.seed % 7):
        await asyncio.sleep(0)

class Guessing(ScriptedWorker):
    def __init__(self):
        super().__init__(respond, before=before)
"""
STACK = {
    "controller": {
        "type": "MajorityVoteController",
        "args": {
            "default_sample_num": 16,
            "allocation": None,
            "generation_controller": {"type": "NativeGenerationController"},
        },
    },
    "workers": {"generation": {"type": "guessing_worker:Guessing"}},
    "seed": 3,
    "evaluation": {"fail_on_error": 1},
}
RUN = ("eval", "--config", "stack.yaml", "--dataset", "data.jsonl", "--output_path")
SPEND = ("--total_tokens", str(BUDGET))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a stack and a dataset."""
    (tmp_path / "stack.yaml").write_text(json.dumps(STACK))
    (tmp_path / "guessing_worker.py").write_text(GUESSING)
    rows = [{"question": f"How many are {i}", "answer": 7} for i in range(NUM_QUESTIONS)]
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("guessing_worker", None)


def call(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.stderr
    return result


def drawn(name: str) -> dict[tuple[str, int], str | None]:
    """The answer of each sample; fails where one stands twice."""
    records = read_records(f"{name}/samples.jsonl")
    found = {(record.id, record.epoch): record.answer for record in records}
    assert len(found) == len(records)
    return found


def votes_of(name: str) -> list[dict[str, object]]:
    """All of the votes but times."""
    return [{**record.to_json(), "seconds": None} for record in read_records(f"{name}/votes.jsonl")]


def total(records: list[Record]) -> int:
    return sum(record.ledger["total"]["decoded"] for record in records)


def test_the_unsettled_get_more_and_all_that_is_told_agrees() -> None:
    result = call(*RUN, "run", *SPEND)
    sizes = Counter(key for key, _ in drawn("run"))
    numbers = sorted(sizes, key=int)
    assert sum(sizes[key] for key in numbers[-5:]) > 2 * sum(sizes[key] for key in numbers[:5])
    document = json.loads(Path("run/summary.json").read_text())
    budget, votes = document["budget"], read_records("run/votes.jsonl")
    spent = total(read_records("run/samples.jsonl"))
    assert BUDGET - 100 < spent < BUDGET + 3 * 50
    assert (budget["spent_tokens"], total(votes), document["summary"]["total_tokens"]["decoded"]) == (spent,) * 3
    assert budget["num_samples"] == sum(sizes.values())
    assert len(votes) == document["summary"]["num_samples"] == NUM_QUESTIONS
    assert document["summary"]["num_correct"] == sum(vote.correct for vote in votes)
    shown = " ".join(result.stdout.split())
    assert f"budget: {spent:,} of 4,000 decoded tokens kept in run" in shown
    assert f"of {BUDGET} tokens done, " in result.stderr
    run = read_run("run")
    assert (run.name, run.summary.num_samples, run.config["seed"]) == ("run", NUM_QUESTIONS, 3)  # what compare reads


def test_tune_refuses_samples_that_a_budget_chose_with_the_way_to_equally_many() -> None:
    call(*RUN, "run", *SPEND)
    told = " ".join(call("tune", "run", "--output_path", "tuned.yaml", code=2).stderr.split())
    assert "unsettled ones have more, and no advice can be based on such a choice" in told
    assert not Path("tuned.yaml").exists()
    (advised,) = re.findall(r"scaffolding-ext (eval .*) --output_path NEW_FOLDER", told)
    call(*advised.split(), "--output_path", "whole")
    assert read_recording(["whole"], num_samples=16).num_samples == 16


def test_samples_of_a_budget_that_bought_all_of_them_are_tuned() -> None:
    call(*RUN, "run", "--total_tokens", "1000000")
    assert read_recording(["run"], num_samples=16).num_samples == 16


def test_the_spending_does_not_depend_on_what_runs_at_once() -> None:
    for name, parallel in (("one", "1"), ("many", "64")):
        call(*RUN, name, *SPEND, "--max_parallel_requests", parallel)
    assert drawn("one") == drawn("many")
    assert votes_of("one") == votes_of("many")


def test_samples_are_those_that_the_whole_vote_draws() -> None:
    call(*RUN, "budget", *SPEND)
    call(*RUN, "whole", "--limit", "1-13")  # the vote of a question whose sample fails has failed
    bought = drawn("budget")
    for record in read_records("whole/samples.jsonl"):
        answers = next(event["answers"] for event in record.trace if event["event"] == "vote")
        own = [answer for (key, _), answer in sorted(bought.items()) if key == record.id]
        assert own
        assert answers[: len(own)] == own


def test_a_run_that_was_killed_goes_on_as_it_would_have_gone() -> None:
    call(*RUN, "whole", *SPEND)
    lines = Path("whole/samples.jsonl").read_text().splitlines(keepends=True)
    for num_lines in (0, 1, 4, len(lines) - 30):
        Path("run").mkdir()
        Path("run/config.yaml").write_text(Path("whole/config.yaml").read_text())
        Path("run/samples.jsonl").write_text("".join(lines[:num_lines]))
        call(*RUN, "run", *SPEND, "--resume")
        assert drawn("run") == drawn("whole")
        assert votes_of("run") == votes_of("whole")
        shutil.rmtree("run")


def test_a_budget_may_become_more_and_not_less() -> None:
    call(*RUN, "run", "--total_tokens", "2000")
    before = Path("run/samples.jsonl").read_bytes()
    done = call(*RUN, "run", "--total_tokens", "2000", "--resume")
    assert done.stderr == ""  # nothing was left to run
    less = call(*RUN, "run", "--total_tokens", "1500", "--resume", code=2)
    assert less.stderr.startswith("Error: evaluation.total_tokens: is 1,500, which buys other answers than the run")
    assert Path("run/samples.jsonl").read_bytes() == before
    call(*RUN, "run", *SPEND, "--resume")
    assert Path("run/samples.jsonl").read_bytes().startswith(before)
    call(*RUN, "whole", *SPEND)
    assert drawn("run") == drawn("whole")


def test_votes_without_an_answer_say_if_their_samples_were_cut() -> None:
    call(*RUN, "run", "--limit", "2", "--total_tokens", "12", "--max_tokens", "3")
    votes = read_records("run/votes.jsonl")
    assert [vote.exit_reason for vote in votes] == ["length"] * 2
    assert [vote.figures["MajorityVoteController"]["stop_reason"] for vote in votes] == [{"length": 1}] * 2


def test_an_ordinary_run_and_one_with_a_budget_do_not_mix() -> None:
    call(*RUN, "run", "--limit", "2")
    mixed = call(*RUN, "run", "--limit", "2", *SPEND, "--resume", code=2)
    assert mixed.stderr.startswith("Error: evaluation.total_tokens: is 4000, but the run in run has None")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--total_tokens", "19"),
            "evaluation.total_tokens: is 19 for 20 questions; give each at least one answer",
        ),
        (
            ("--total_tokens", "300"),
            "evaluation.total_tokens: is 300; one sample for each of 20 questions takes about ",
        ),
        ((*SPEND, "--set", "controller={type: NativeGenerationController}"), "evaluation.total_tokens: needs a vote"),
        ((*SPEND, "--epochs", "2"), "evaluation: epochs and total_tokens are both given"),
        (
            (*SPEND, "--set", "controller.args.default_sample_num=1"),
            "controller.args.default_sample_num: is 1; with evaluation",
        ),
        ((*SPEND, "--set", "controller.args.weight=mean_logprob"), "controller.args.weight: must be uniform with"),
    ],
)
def test_what_a_budget_cannot_be_spent_on_is_refused_by_the_key(options: tuple[str, ...], message: str) -> None:
    assert f"Error: {message}" in call(*RUN, "run", *options, code=2).stderr
    assert not Path("run").exists() or read_records("run/samples.jsonl")  # the first samples told what one takes
