"""Answers as models write them to questions that name the unit, and questions with options, scored by letter."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.evaluation.run.formats import UNITS_IMPLIED
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.evaluation.run.scoring import letter_of
from scaffolding_ext.evaluation.run.session import units_implied
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker

# What a model wrote, the target, and whether it is right.
WRITTEN = [
    ("The train goes 180 km.\n#### 180", "180", True),
    ("#### 180", "180", True),
    ("So it costs\n#### $1,800", "1800", True),
    ("#### 18 dollars", "18", True),
    ("#### -5", "-5", True),
    ("The answer is 180 km.", "180", True),
    ("The answer is 180.", "180", True),
    ("The answer is $180.", "180", True),
    ("The answer is \\$180.", "180", True),
    ("The answer is **180 km**.", "180", True),
    ("The final answer is: $180$ dollars", "180", True),
    ("Answer: 180 dollars", "180", True),
    ("The answer is 1,800 meters.", "1800", True),
    ("The answer is 2.5 hours.", "2.5", True),
    ("The answer is €45.", "45", True),
    ("The answer is £45.50.", "45.5", True),
    ("The answer is 45 cents.", "45", True),
    ("The answer is 25%.", "25", True),
    ("The answer is 25 percent.", "25", True),
    (r"\boxed{180\text{ km}}", "180", True),
    (r"\boxed{180 \, \text{km}}", "180", True),
    (r"\boxed{\$180}", "180", True),
    (r"\boxed{180\ \mathrm{dollars}}", "180", True),
    (r"\boxed{1{,}800}", "1800", True),
    (r"\boxed{90^\circ}", "90", True),
    (r"\boxed{12\text{ m}^2}", "12", True),
    (r"\boxed{\frac{7}{2}\text{ hours}}", "3.5", True),
    (r"\boxed{3\frac{1}{2}}", "3.5", True),
    (r"\boxed{60 \text{ km/h}}", "60", True),
    (r"\boxed{15\%}", "15", True),
    ("So she has 180 dollars left.", "180", True),
    ("He needs 12 eggs a week, which makes 48.", "48", True),
    ("It is $3 + $4 = $7.", "7", True),
    ("180 dollars", "180", True),
    ("#### 181", "180", False),
    ("The answer is 18 km.", "180", False),
    (r"\boxed{0.25}", "25", False),
    (r"\boxed{25\%}", "0.25", False),
    ("I do not know.", "180", False),
    (r"\boxed{-180\text{ km}}", "180", False),
]


def run_on(texts: dict[str, str], samples: list[Example], **options: Any) -> list[Any]:
    """The records of samples whose prompts a worker answers with these texts."""
    worker = ScriptedWorker(lambda task: texts[task.input_str])
    from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController

    with ScaffoldingLlm(NativeGenerationController(), {"generation": worker}) as llm:
        return evaluate(llm, samples, **options)


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., list[Example]]:
    """Reads rows as a data set of a format."""

    def read(*rows: dict[str, Any], **options: Any) -> list[Example]:
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return load_dataset(path, **options)

    return read


def test_answers_with_units_currencies_hashes_words_and_latex(rows: Callable[..., list[Example]]) -> None:
    samples = rows(
        *({"question": f"q{n}", "answer": f"It is so.\n#### {target}"} for n, (_, target, _) in enumerate(WRITTEN)),
        format="gsm8k",
    )
    texts = {sample.prompt: text for sample, (text, _, _) in zip(samples, WRITTEN, strict=True)}
    records = run_on(texts, samples, units_implied="gsm8k" in UNITS_IMPLIED)
    wrong = [
        (each, record.answer) for each, record in zip(WRITTEN, records, strict=True) if record.correct is not each[2]
    ]
    assert len(WRITTEN) == 40
    assert wrong == []


STACK = """
controller: {type: NativeGenerationController}
workers:
  generation: {type: HuggingFaceWorker, args: {model: tinylm/draft}}
"""


@pytest.mark.parametrize(
    ("more", "implied"),
    [
        ("dataset: x.jsonl\n", False),
        ("dataset: {source: x.jsonl, format: gsm8k}\n", True),
        ("dataset: hf:openai/gsm8k\n", True),
        ("dataset: hf:openai/gsm8k\nevaluation: {units_implied: false}\n", False),
        ("dataset: x.jsonl\nevaluation: {units_implied: true}\n", True),
        ("  compare: {type: CompareWorker, args: {units_implied: true}}\ndataset: x.jsonl\n", True),
        ("  compare: {type: CompareWorker, args: {units_implied: false}}\ndataset: hf:openai/gsm8k\n", False),
    ],
)
def test_who_says_that_units_are_implied(tmp_path: Path, more: str, implied: bool) -> None:
    (tmp_path / "stack.yaml").write_text(STACK + more)
    assert units_implied(load_config(tmp_path / "stack.yaml")) is implied


MMLU = {"question": "Which is a prime?", "subject": "number_theory", "choices": ["8", "9", "11", "15"], "answer": 2}
MMLU_PRO = {
    "question_id": 70,
    "question": "Which gas?",
    "options": ["Argon", "Neon", "Xenon", "Radon", "Helium", "Krypton"],
    "answer": "F",
    "answer_index": 5,
    "cot_content": "",
    "category": "chemistry",
    "src": "made by hand",
}
ARC = {
    "id": "Mercury_1",
    "question": "What heats the Earth?",
    "choices": {"text": ["the Moon", "the Sun", "Mars"], "label": ["1", "2", "3"]},
    "answerKey": "2",
}
GPQA = {
    "Record ID": "rec1",
    "Question": "Which decays?",
    "Correct Answer": "the muon",
    "Incorrect Answer 1": "the proton",
    "Incorrect Answer 2": "the electron",
    "Incorrect Answer 3": "the photon\n",
    "High-level domain": "Physics",
}


@pytest.mark.parametrize(
    ("row", "target", "name", "kind"),
    [
        (MMLU, "C", "1", "number_theory"),
        (MMLU_PRO, "F", "70", "chemistry"),
        (ARC, "B", "Mercury_1", None),
        (
            ARC | {"choices": {"text": ["a cat", "a dog"], "label": ["A", "B"]}, "answerKey": "A"},
            "A",
            "Mercury_1",
            None,
        ),
    ],
)
def test_rows_with_options_are_asked_with_them(
    rows: Callable[..., list[Example]], row: dict[str, Any], target: str, name: str, kind: str | None
) -> None:
    (sample,) = rows(row, format="multiple_choice")
    options = row.get("options") or (row["choices"]["text"] if isinstance(row["choices"], dict) else row["choices"])
    assert (sample.target, sample.id, sample.kind, sample.options) == (target, name, kind, tuple(options))
    listed = "\n".join(f"{letter}) {option}" for letter, option in zip("ABCDEF", options, strict=False))
    assert sample.prompt == f"{row['question']}\n\n{listed}\n\nAnswer with the letter of the right option."


def test_options_of_gpqa_are_shuffled_by_seed(rows: Callable[..., list[Example]]) -> None:
    many = [GPQA | {"Record ID": f"rec{n}"} for n in range(40)]
    first, again, other = (rows(*many, format="gpqa", seed=seed) for seed in (3, 3, 4))
    assert first == again != other
    assert {sample.target for sample in first} == set("ABCD")
    for sample in first:
        assert sample.options["ABCD".index(sample.target)] == "the muon"
        assert sorted(sample.options) == ["the electron", "the muon", "the photon", "the proton"]
        assert sample.kind == "Physics"


@pytest.mark.parametrize(
    ("row", "format", "message"),
    [
        (MMLU, None, r"has the field 'choices', whose options would be ignored: set dataset.format to multiple_choice"),
        (MMLU_PRO, "math500", "none of the fields|no field 'problem'"),
        (GPQA | {"question": "q", "answer": "a"}, None, "has the field 'Incorrect Answer 1'"),
        (MMLU | {"answer": 4}, "multiple_choice", "must name one of the 4 options: by its index from 0"),
        (MMLU | {"answer": "E"}, "multiple_choice", "must name one of the 4 options"),
        (MMLU | {"choices": ["one"]}, "multiple_choice", "has 1 options; a question has 2 to 26"),
        (MMLU | {"choices": "8, 9"}, "multiple_choice", "no list of options"),
        ({"Question": "q", "Correct Answer": "a"}, "gpqa", "no 'Incorrect Answer 1'"),
    ],
)
def test_rows_whose_options_are_not_read_are_refused(
    rows: Callable[..., list[Example]], row: dict[str, Any], format: str | None, message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        rows(row, format=format)


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        (r"It is \boxed{C}.", "C"),
        (r"\boxed{(C)}", "C"),
        (r"\boxed{\text{C}}", "C"),
        (r"\boxed{C) 11}", "C"),
        (r"\boxed{11}", "C"),
        ("The answer is (C).", "C"),
        ("The answer is C) 11.", "C"),
        ("The answer is 11.", "C"),
        ("I rule out A and B, so it must be C", "C"),
        (r"\boxed{D}", "D"),
        ("no idea", None),
    ],
)
def test_an_answer_names_its_option_by_letter_or_by_text(
    rows: Callable[..., list[Example]], text: str, letter: str | None
) -> None:
    samples = rows(MMLU, format="multiple_choice")
    (record,) = run_on({samples[0].prompt: text}, samples)
    assert (record.answer, record.correct) == (letter, letter == "C")


def test_an_options_text_may_begin_with_a_letter() -> None:
    options = ("the Moon", "a cat", "A dog", "C")
    assert [letter_of(answer, options) for answer in ("A dog", "a cat", "B", "A", "(D)")] == ["C", "B", "B", "A", "D"]
