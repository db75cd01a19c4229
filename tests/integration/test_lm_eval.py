"""lm-evaluation-harness runs a task on an embedded stack, and one through `serve`, from data on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaffolding_ext import MajorityVoteController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.testing import ScriptedWorker

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
OVER_HTTP = """
task: two_and_two
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/questions.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["Question:", "</s>"], do_sample: true, temperature: 0.7, max_gen_toks: 64}
filter_list:
  - name: boxed
    filter:
      - {function: regex, regex_pattern: "boxed{([0-9]+)}"}
      - {function: take_first}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
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


def test_it_asks_serve_over_http(tmp_path: Path) -> None:
    """`pip install 'lm-eval[api]'`."""
    pytest.importorskip("lm_eval")
    rows = [json.dumps({"question": f"{a}+{4 - a}?", "answer": "4"}) for a in range(4)]
    (tmp_path / "questions.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "two_and_two.yaml").write_text(OVER_HTTP.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    vote = MajorityVoteController(NativeGenerationController({"temperature": 1.0}), 4, allocation=None)
    host = ScaffoldingLlm(vote, {"generation": ScriptedWorker("It is \\boxed{4}.")})
    with FrontThread(Front([ServedStack("vote", host, Limits())], Limits())) as running:
        address = f"model=vote,base_url={running.url}/v1/chat/completions"
        model = f"{address},num_concurrent=4,max_retries=1,tokenized_requests=False"
        command = [
            *(sys.executable, "-m", "lm_eval", "--model", "local-chat-completions", "--model_args", model),
            *("--tasks", "two_and_two", "--include_path", str(tmp_path), "--apply_chat_template"),
            *("--output_path", str(tmp_path / "out")),
        ]
        environment = os.environ | {
            "OPENAI_API_KEY": "none",
            "HF_DATASETS_OFFLINE": "1",
            "HF_HOME": str(tmp_path / "hf"),
        }
        run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text(encoding="utf-8"))["results"]["two_and_two"]["exact_match,boxed"] == 1.0
