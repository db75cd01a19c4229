"""The page of `tune`: its commands run on logs of the form that it shows, and print what it says that they print."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.stack.load import load_config
from tests.docs.pages import DOCS, blocks

PAGE = (DOCS / "tune.md").read_text(encoding="utf-8")
NUM_QUESTIONS = 30
COMMANDS = re.findall(r"^scaffolding-ext (?:tune|replay) logs/.*$", PAGE, re.MULTILINE)
(ROW,) = (json.loads(block.text) for block in blocks(PAGE, "json"))


def write_log(path: Path, seed: int) -> None:
    """Questions of four samples, each with the fields of the page's first sample."""
    rng = np.random.default_rng(seed)
    full: dict[str, Any] = ROW["samples"][0]
    rows = []
    for number in range(NUM_QUESTIONS):
        answers = rng.choice([ROW["target"], "41", "40"], 4, p=[0.7, 0.2, 0.1]).tolist()
        samples = [full | {"answer": answer, "output_tokens": int(rng.integers(500, 1500))} for answer in answers]
        rows.append(json.dumps(ROW | {"question": f"q{number}", "samples": samples}))
    path.write_text("\n".join(rows))


def test_its_commands_tune_and_replay_logs_of_its_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {name for command in COMMANDS for name in re.findall(r"logs/\S+", command)}
    assert len(COMMANDS) >= len(names) == 2
    (tmp_path / "logs").mkdir()
    for seed, name in enumerate(sorted(names)):
        write_log(tmp_path / name, seed)
    printed = []
    for command in COMMANDS:
        done = CliRunner().invoke(main, shlex.split(command)[1:])
        assert done.exit_code == 0, done.output
        printed.append(done.output)
    header = printed[0].splitlines()[0]
    columns = re.findall(r"^\| `(.+?)` \| ", PAGE.partition("| column | says |")[2].partition("\n\n")[0], re.MULTILINE)
    assert columns == ["right %", "points", "decoded %", "rounds"]
    assert [column for column in columns if column not in header] == []
    (section,) = (each for each in PAGE.split("\n\n") if "`stop when decided`" in each and "hindsight" in each)
    lines = [" ".join(name.split()) for name in re.findall(r"`([^`]+)`", section)]
    assert len(lines) >= 4
    assert [name for name in lines if name not in printed[0]] == []
    tuned = load_config("stack.yaml").tuned
    assert tuned is not None
    assert tuned.num_questions == NUM_QUESTIONS
    assert printed[0].partition("\n\nAdvice: ask ")[2]


def test_the_row_that_it_shows_has_all_that_it_says(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(ROW))
    question = read_recording([path]).questions[0]
    assert (question.id, question.task, question.run) == (ROW["question"], ROW["task"], ROW["run"])
    assert question.correct.tolist() == [True, False]
    assert question.tokens.tolist() == [sample["output_tokens"] for sample in ROW["samples"]]
    assert question.missing == {"seconds", "logprobs", "rewards", "probes"}  # the second sample lacks them
