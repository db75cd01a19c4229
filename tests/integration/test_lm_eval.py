"""lm-evaluation-harness itself runs one of its tasks on an embedded stack, from data on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaffolding_ext.evaluation.run.datasets import load_dataset

pytestmark = pytest.mark.integration
NUM_PROBLEMS = 3
TASK = """
include: {task}
task: gsm8k_local
dataset_path: json
dataset_name: null
dataset_kwargs: {{data_files: {{test: {data}}}}}
training_split: null
fewshot_split: null
num_fewshot: 0
doc_to_text: "{{{{question}}}}"
repeats: 2
"""


def test_its_gsm8k_runs_on_a_stack(tmp_path: Path) -> None:
    harness = importlib.util.find_spec("lm_eval")
    if harness is None or harness.origin is None:
        pytest.skip("lm-eval is not installed")
    problems = load_dataset("tinylm:held_out", num_samples=NUM_PROBLEMS)
    rows = [json.dumps({"question": one.prompt, "answer": f"work\n#### {one.target}"}) for one in problems]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    gsm8k = Path(harness.origin).parent / "tasks" / "gsm8k" / "gsm8k.yaml"
    (tmp_path / "task.yaml").write_text(TASK.format(task=gsm8k, data=tmp_path / "rows.jsonl"), encoding="utf-8")
    ledgers = tmp_path / "ledgers.jsonl"
    stack = f"config=configs:native,overrides=workers.generation.args.model=tinylm/draft,ledger_path={ledgers}"
    command = [sys.executable, "-m", "scaffolding_ext.plugins.lm_eval", "--model", "scaffolding_ext"]
    options = ["--model_args", stack, "--tasks", "gsm8k_local", "--include_path", str(tmp_path)]
    kept = ["--output_path", str(tmp_path / "out"), "--log_samples"]
    done = subprocess.run(
        [*command, *options, *kept], capture_output=True, text=True, cwd=tmp_path, env=_offline(tmp_path), check=False
    )
    assert done.returncode == 0, done.stderr
    (results,) = (tmp_path / "out").rglob("results_*.json")
    score = json.loads(results.read_text())["results"]["gsm8k_local"]["exact_match,flexible-extract"]
    found = [json.loads(line) for line in ledgers.read_text().splitlines()]
    assert len(found) == 2 * NUM_PROBLEMS
    assert len({row["seed"] for row in found}) == 2 * NUM_PROBLEMS  # a repeat samples again
    assert all(row["ledger"]["total"]["decoded"] > 0 and row["trace"] is not None for row in found)
    right = [row["answer"] == problems[row["doc_id"]].target for row in found[::2]]
    assert score == pytest.approx(sum(right) / NUM_PROBLEMS)


def _offline(folder: Path) -> dict[str, str]:
    return os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")}
