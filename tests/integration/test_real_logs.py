"""Logs that lm-evaluation-harness, inspect_ai and lighteval write here are read back, and give right votes.

A log that cannot give votes is refused. Install both, then `pytest -m integration tests/integration/test_real_logs.py`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.run.datasets import load_dataset

pytestmark = pytest.mark.integration

# Five questions of four samples each: the answer 10 + n, and the sample that is wrong.
QUESTIONS = [{"id": number, "question": f"What is {number} + 10?", "answer": str(number + 10)} for number in range(5)]
FORMS = [
    "We add and get {a}.\nThe final answer is $\\boxed{{{a}}}$.",
    "First the tens.\n\nSo the answer is {a}.",
    "Let me think. It is {a}.\n#### {a}",
    "Final Answer: The final answer is ${a}$. I hope it is correct.",
]


def text_of(number: int, sample: int) -> str:
    """The sample whose turn it is answers 99."""
    answer = "99" if sample == number % 4 else str(number + 10)
    return FORMS[(number + sample) % len(FORMS)].format(a=answer)


def run(folder: Path, *command: str) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    environment = os.environ | offline | {"INSPECT_TRACE_FILE": str(folder / "trace")}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


def check_votes(recording: Any) -> None:
    """All samples but one of each question are right, and equal."""
    assert len(recording.questions) == len(QUESTIONS)
    for question in recording.questions:
        number = int(question.id)
        right = [sample != number % 4 for sample in range(4)]
        assert question.correct.tolist() == right
        assert len({label for label, is_right in zip(question.classes.tolist(), right, strict=True) if is_right}) == 1
        assert len(set(question.classes.tolist())) == 2
    assert recording.doubt is None


# ---- lm-evaluation-harness

HARNESS = """
import json, sys
import lm_eval
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

texts = json.loads(open("texts.json").read())

class Scripted(LM):
    def __init__(self):
        super().__init__()
        self.seen = {}
    def generate_until(self, requests):
        found = []
        for request in requests:
            number = request.doc["id"]
            sample = self.seen[number] = self.seen.get(number, -1) + 1
            found.append(texts[number][sample])
        return found
    def loglikelihood(self, requests):
        return [(-1.0 - index % 3, index % 2 == 0) for index, _ in enumerate(requests)]
    def loglikelihood_rolling(self, requests):
        return [-7.0 for _ in requests]

model = Scripted()
manager = TaskManager(include_path=".")
options = {"task_manager": manager, "log_samples": True, "bootstrap_iters": 0}
results = lm_eval.simple_evaluate(model=model, tasks=["local"], **options)
rows = results["samples"]["local"]
with open("samples_local_2026-11-28T00-00-00.000000.jsonl", "w") as file:
    for row in rows:
        file.write(json.dumps(row, default=str) + "\\n")
"""
TASK = {
    "task": "local",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "rows.jsonl"}},
    "test_split": "test",
    "num_fewshot": 0,
    "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}",
}
EXACT = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
REGEX = {"function": "regex", "regex_pattern": r"(-?\d+)", "group_select": -1}


def harness_log(folder: Path, **task: Any) -> Path:
    if importlib.util.find_spec("lm_eval") is None:
        pytest.skip("lm-eval is not installed")
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    (folder / "texts.json").write_text(json.dumps([[text_of(n, sample) for sample in range(4)] for n in range(5)]))
    (folder / "local.yaml").write_text(json.dumps({**TASK, **task}))  # JSON is YAML
    run(folder, "-c", HARNESS)
    (path,) = folder.glob("samples_*.jsonl")
    return path


@pytest.mark.parametrize(
    "filters",
    [
        None,
        [{"name": "flexible-extract", "filter": [REGEX, {"function": "take_first"}]}],
        [
            {"name": "strict-match", "filter": [{**REGEX, "regex_pattern": r"#### (\d+)"}, {"function": "take_first"}]},
            {"name": "flexible-extract", "filter": [REGEX, {"function": "take_first"}]},
        ],
        [{"name": "majority", "filter": [REGEX, {"function": "majority_vote"}, {"function": "take_first"}]}],
    ],
    ids=["none", "flexible", "strict and flexible", "majority"],
)
def test_generated_texts_give_right_votes(tmp_path: Path, filters: list[Any] | None) -> None:
    task = {"output_type": "generate_until", "repeats": 4, "metric_list": EXACT}
    path = harness_log(
        tmp_path, **task, generation_kwargs={"until": ["</s>"]}, **({"filter_list": filters} if filters else {})
    )
    check_votes(read_recording([path]))


@pytest.mark.parametrize(
    "task",
    [
        {"output_type": "multiple_choice", "doc_to_choice": ["10", "11", "12", "13", "14"], "doc_to_target": "{{id}}"},
        {"output_type": "loglikelihood", "metric_list": [{"metric": "acc"}, {"metric": "perplexity"}]},
        {"output_type": "loglikelihood_rolling", "metric_list": [{"metric": "word_perplexity"}], "doc_to_text": ""},
    ],
    ids=lambda task: task["output_type"],
)
def test_log_likelihoods_are_refused(tmp_path: Path, task: dict[str, Any]) -> None:
    path = harness_log(tmp_path, **task)
    with pytest.raises(DatasetError, match="log-likelihoods"):
        read_recording([path])


# ---- inspect_ai

INSPECT = """
import json, sys
from inspect_ai import Epochs, Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import *
from inspect_ai.solver import generate, multiple_choice

texts = json.loads(open("texts.json").read())
questions = json.loads(open("questions.json").read())
choices = sys.argv[2] == "choice"
grader = None
if sys.argv[2].startswith("model_graded"):
    verdicts = json.loads(open("verdicts.json").read())
    graded = [ModelOutput.from_content("mockllm/grader", "GRADE: " + verdict) for verdict in verdicts]
    for output in graded:  # without usage it would download a tokenizer
        output.usage = ModelUsage(input_tokens=50, output_tokens=3, total_tokens=53)
    grader = get_model("mockllm/grader", custom_outputs=graded, memoize=False)
outputs = []
for epoch in range(4):
    for number, own in enumerate(texts):
        output = ModelOutput.from_content("mockllm/model", own[epoch])
        output.usage = ModelUsage(input_tokens=7, output_tokens=20 + epoch, total_tokens=27 + epoch)
        outputs.append(output)
samples = [
    Sample(id=str(q["id"]), input=q["question"], target=q["target"], choices=q["options"] if choices else None)
    for q in questions
]
scorer = {
    "includes": lambda: includes(),
    "match": lambda: match(),
    "match_numeric": lambda: match(numeric=True),
    "pattern": lambda: pattern(r"(\\d+)[^0-9]*$"),
    "answer_line": lambda: answer("line"),
    "answer_letter": lambda: answer("letter"),
    "answer_word": lambda: answer("word"),
    "exact": lambda: exact(),
    "f1": lambda: f1(),
    "choice": lambda: choice(),
    "model_graded_fact": lambda: model_graded_fact(model=grader),
    "model_graded_qa": lambda: model_graded_qa(model=grader),
}[sys.argv[2]]()
solver = multiple_choice() if choices else generate()
task = Task(dataset=samples, solver=solver, scorer=scorer, epochs=Epochs(4, "mean"))
model = get_model("mockllm/model", custom_outputs=outputs, memoize=False)
(log,) = eval(task, model=model, log_dir=sys.argv[1], display="none", max_samples=1, max_connections=1)
assert log.status == "success", log.error
"""
LETTERS = "ABCDE"


def inspect_log(folder: Path, scorer: str, texts: list[list[str]], targets: list[str], verdicts: list[str]) -> Path:
    pytest.importorskip("inspect_ai")
    options = [str(number + 10) for number in range(5)]
    questions = [{**one, "target": target, "options": options} for one, target in zip(QUESTIONS, targets, strict=True)]
    (folder / "texts.json").write_text(json.dumps(texts))
    (folder / "questions.json").write_text(json.dumps(questions))
    (folder / "verdicts.json").write_text(json.dumps(verdicts))
    run(folder, "-c", INSPECT, str(folder / "logs"), scorer)
    (path,) = (folder / "logs").glob("*.eval")
    return path


def with_end(form: str, letters: bool = False) -> list[list[str]]:
    """Texts that end in a form with the answer, or its letter."""

    def said(number: int, sample: int) -> str:
        is_wrong = sample == number % 4
        if letters:
            return LETTERS[(number + 1) % 5] if is_wrong else LETTERS[number]
        return "99" if is_wrong else str(number + 10)

    return [[f"I thought about it.\n\n{form}".format(said(n, sample)) for sample in range(4)] for n in range(5)]


PLAIN_TARGETS = [each["answer"] for each in QUESTIONS]
VERDICTS = ["I" if epoch == number % 4 else "C" for epoch in range(4) for number in range(5)]


@pytest.mark.parametrize(
    ("scorer", "form"),
    [
        ("includes", "So the answer is {}."),
        ("includes", "\\boxed{{{}}}"),
        ("match", "The answer is {}"),
        ("match_numeric", "ANSWER: {}"),
        ("pattern", "So it is {} in the end."),
        ("answer_line", "ANSWER: {}"),
        ("answer_word", "ANSWER: {}"),
        ("model_graded_fact", "Therefore the answer is {}."),
        ("model_graded_qa", "#### {}"),
    ],
)
def test_texts_under_each_scorer_give_right_votes(tmp_path: Path, scorer: str, form: str) -> None:
    check_votes(read_recording([inspect_log(tmp_path, scorer, with_end(form), PLAIN_TARGETS, VERDICTS)]))


@pytest.mark.parametrize("scorer", ["exact", "f1"])
def test_bare_answers_give_right_votes(tmp_path: Path, scorer: str) -> None:
    texts = [["99" if sample == n % 4 else str(n + 10) for sample in range(4)] for n in range(5)]
    check_votes(read_recording([inspect_log(tmp_path, scorer, texts, PLAIN_TARGETS, [])]))


@pytest.mark.parametrize(("scorer", "form"), [("choice", "ANSWER: {}"), ("answer_letter", "ANSWER: {}")])
def test_letters_give_right_votes(tmp_path: Path, scorer: str, form: str) -> None:
    texts = with_end(form, letters=True)
    check_votes(read_recording([inspect_log(tmp_path, scorer, texts, list(LETTERS), [])]))


# ---- tokens, models and sampling

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
