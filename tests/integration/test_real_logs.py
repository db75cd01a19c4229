"""Rows of each output type of lm-evaluation-harness, and of each scorer of inspect_ai, give right votes.

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


def run(folder: Path, code: str, *arguments: str) -> None:
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    environment = os.environ | offline | {"INSPECT_TRACE_FILE": str(folder / "trace")}
    script = folder / "script.py"
    script.write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        check=False,
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
    run(folder, HARNESS)
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
    run(folder, INSPECT, str(folder / "logs"), scorer)
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
