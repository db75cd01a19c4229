"""Logs that inspect_ai and lm-evaluation-harness write here are read back: epochs, answers, verdicts and tokens."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.run.datasets import load_dataset

pytestmark = pytest.mark.integration
MOCKED = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import generate

outputs = []
for number, text in enumerate(["ANSWER: 4", "ANSWER: 5", "ANSWER: 4", "ANSWER: 4"]):
    output = ModelOutput.from_content("mockllm/model", text)
    output.usage = ModelUsage(input_tokens=7, output_tokens=10 + number, total_tokens=17 + number)
    outputs.append(output)
samples = [Sample(input="2+2", target="4", id="one"), Sample(input="3+1", target="4", id="two")]
task = Task(dataset=samples, solver=generate(), scorer=match(numeric=True), epochs=2, name="sums")
model = get_model("mockllm/model", custom_outputs=outputs)
sampling = {"temperature": 0.6, "max_tokens": 300, "stop_seqs": ["###"], "max_retries": 2}
options = {"log_format": sys.argv[2], "display": "none", "max_samples": 1, **sampling}
(log,) = eval(task, model=model, log_dir=sys.argv[1], **options)
assert log.status == "success", log.error
"""
LM_EVAL_TASK = """
include: {task}
task: gsm8k_local
dataset_path: json
dataset_name: null
dataset_kwargs: {{data_files: {{test: {data}}}}}
training_split: null
fewshot_split: null
num_fewshot: 0
doc_to_text: "{{{{question}}}}"
repeats: 3
"""


def run(folder: Path, *command: str) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    environment = os.environ | offline | {"INSPECT_TRACE_FILE": str(folder / "trace")}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("log_format", ["eval", "json"])
def test_a_log_of_inspect_ai_is_read_back(tmp_path: Path, log_format: str) -> None:
    pytest.importorskip("inspect_ai")
    run(tmp_path, "-c", MOCKED, str(tmp_path / "logs"), log_format)
    (log,) = (tmp_path / "logs").glob(f"*.{log_format}")
    recording = read_recording([log])
    assert [each.id for each in recording.questions] == ["one", "two"]
    assert [each.task for each in recording.questions] == ["sums"] * 2
    assert recording.model == "model"
    assert recording.sampling == {"temperature": 0.6, "max_tokens": 300, "stop": ["###"]}
    assert recording.num_samples == 2
    assert sorted(each for question in recording.questions for each in question.tokens.tolist()) == [10, 11, 12, 13]
    right = [each for question in recording.questions for each in question.correct.tolist()]
    assert sum(right) == 3
    wrong = next(question for question in recording.questions if not question.correct.all())
    assert len(set(wrong.classes.tolist())) == 2


def test_samples_of_lm_evaluation_harness_are_read_back(tmp_path: Path) -> None:
    harness = importlib.util.find_spec("lm_eval")
    if harness is None or harness.origin is None:
        pytest.skip("lm-eval is not installed")
    problems = load_dataset("tinylm:held_out", num_samples=2)
    rows = [json.dumps({"question": one.prompt, "answer": f"work\n#### {one.target}"}) for one in problems]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows), encoding="utf-8")
    gsm8k = Path(harness.origin).parent / "tasks" / "gsm8k" / "gsm8k.yaml"
    (tmp_path / "task.yaml").write_text(LM_EVAL_TASK.format(task=gsm8k, data=tmp_path / "rows.jsonl"))
    stack = f"config=configs:native,overrides=workers.generation.args.model=tinylm/draft,ledger_path={tmp_path}/ledger"
    options = ["--model_args", stack, "--tasks", "gsm8k_local", "--include_path", str(tmp_path)]
    kept = ["--output_path", str(tmp_path / "out"), "--log_samples"]
    run(tmp_path, "-m", "scaffolding_ext.plugins.lm_eval", "--model", "scaffolding_ext", *options, *kept)
    (path,) = (tmp_path / "out").rglob("samples_*.jsonl")
    recording = read_recording([path])
    assert (len(recording.questions), recording.num_samples) == (2, 3)
    assert recording.questions[0].task == "gsm8k_local"
    assert recording.model is None
    assert recording.sampling is not None
    assert (recording.sampling["temperature"], "Question:" in recording.sampling["stop"]) == (0.0, True)
    assert "tokens" in recording.missing
    said: dict[int, list[bool]] = {}
    for row in map(json.loads, (tmp_path / "ledger").read_text().splitlines()):
        said.setdefault(row["doc_id"], []).append(row["answer"] == problems[row["doc_id"]].target)
    for question in recording.questions:
        assert sorted(question.correct.tolist()) == sorted(said[int(question.id)])


def test_details_of_lighteval_are_read_back(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    doc = {"id": "7", "task_name": "lighteval|math_500|0", "query": "1+1", "choices": ["2"], "gold_index": [0]}
    texts = ["so \\boxed{2}", "so \\boxed{3}", "I do not know. " * 20]
    response = {"text": texts, "text_post_processed": None, "output_tokens": [[1] * 5, [1] * 6, [1] * 7]}
    table = pyarrow.Table.from_pylist([{"doc": doc, "model_response": response, "metric": {"pass@1": 1 / 3}}])
    path = tmp_path / "details" / "org" / "model" / "2026" / "details_math_500_2026.parquet"
    path.parent.mkdir(parents=True)
    parquet.write_table(table, path)
    results = tmp_path / "results" / "org" / "model" / "results_2026.json"
    results.parent.mkdir(parents=True)
    parameters = {"temperature": 0.6, "max_new_tokens": 300}
    results.write_text(json.dumps({"config_general": {"model_name": "org/model", "generation_parameters": parameters}}))
    recording = read_recording([path])
    assert (recording.model, recording.sampling) == ("org/model", {"temperature": 0.6, "max_tokens": 300})
    question = recording.questions[0]
    assert (question.id, question.run, question.task) == ("7", "model", "lighteval|math_500|0")
    assert question.tokens.tolist() == [5, 6, 7]
    assert question.classes.tolist() == [0, 1, -1]
    assert question.correct.tolist() == [True, False, False]
