"""Logs are read as they are: equal answers are grouped, tokens are the log's, errors name file and line."""

from __future__ import annotations

import dataclasses
import gzip
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import Recording
from scaffolding_ext.evaluation.run.formats import Example
from scaffolding_ext.evaluation.run.records import record_writer
from scaffolding_ext.evaluation.run.runner import EvaluationJob, failed_record
from scaffolding_ext.protocol.meta import TokenCounts

Row = Mapping[str, Any]


def read(path: Path, rows: Sequence[Row], **given: Any) -> Recording:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_recording([path], **given)


def sample(answer: object, **more: object) -> dict[str, object]:
    return {"answer": answer, **more}


def test_equal_answers_are_one_class_and_the_target_judges_them(tmp_path: Path) -> None:
    samples = [sample("1/2"), sample("0.5"), sample(None), sample("3")]
    recording = read(tmp_path / "log.jsonl", [{"id": "a", "target": "\\frac12", "samples": samples}])
    question = recording.questions[0]
    assert question.classes.tolist() == [0, 0, -1, 1]
    assert question.correct.tolist() == [True, True, False, False]
    assert question.target == 0
    assert recording.measure == "accuracy"


def test_choices_are_grouped_by_letter(tmp_path: Path) -> None:
    samples = [sample("(b)"), sample("B."), sample("**B**"), sample("option B"), sample("C"), sample("both A and B")]
    question = read(tmp_path / "log.jsonl", [{"id": "a", "target": "B", "samples": samples}]).questions[0]
    assert question.classes.tolist() == [0, 0, 0, 0, 1, 2]
    assert question.correct.tolist() == [True] * 4 + [False] * 2


def test_without_targets_the_measure_is_agreement_with_the_full_vote(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "samples": [sample("1"), sample("2"), sample("2")]},
        {"id": "b", "target": "7", "samples": [sample("7"), sample("8"), sample("8")]},
    ]
    recording = read(tmp_path / "log.jsonl", rows)
    assert recording.measure == "agreement"
    assert [each.correct.tolist() for each in recording.questions] == [[False, True, True]] * 2


def test_a_sample_without_answer_and_text_is_refused_and_one_that_gave_none_is_not(tmp_path: Path) -> None:
    row = {"id": "a", "target": "7", "samples": [sample("7"), sample(None)]}
    assert read(tmp_path / "log.jsonl", [row]).questions[0].classes.tolist() == [0, -1]
    with pytest.raises(DatasetError, match=r"log.jsonl, line 2: a sample has the fields answr; it needs `answer`"):
        read(tmp_path / "log.jsonl", [row, row | {"id": "b", "samples": [{"answr": "7"}, sample("8")]}])


def test_a_log_whose_run_has_failed_says_so(tmp_path: Path) -> None:
    failed = {"id": "a", "epoch": 0, "ledger": {}, "error": {"type": "EngineError", "message": "gone"}}
    fields = ("prompt_hash", "target", "output", "answer", "correct", "verdict", "exit_reason", "seconds", "seed")
    with pytest.raises(DatasetError, match=r"samples.jsonl: has no finished sample: did its run fail\?"):
        read(tmp_path / "samples.jsonl", [dict.fromkeys(fields) | {"trace": []} | failed])


def test_labels_of_the_log_stand_where_it_has_some(tmp_path: Path) -> None:
    samples = [sample("seven", correct=True), sample("8", correct=False)]
    recording = read(tmp_path / "log.jsonl", [{"id": "a", "samples": samples}])
    assert recording.measure == "accuracy"
    assert recording.questions[0].correct.tolist() == [True, False]
    assert recording.questions[0].target == 0


def test_without_tokens_samples_are_counted_and_the_columns_are_named(tmp_path: Path) -> None:
    recording = read(tmp_path / "log.jsonl", [{"id": "a", "target": "1", "samples": [sample("1"), sample("2")]}])
    assert recording.questions[0].tokens.tolist() == [1, 1]
    assert recording.missing == {"tokens", "seconds", "logprobs", "rewards", "probes"}


def test_every_column_of_a_plain_row_is_read(tmp_path: Path) -> None:
    first = sample("1", output_tokens=10, seconds=1.5, logprob=-0.5, reward=0.25, text="so 1")
    second = sample("2", tokens=20, seconds=2.5, ppl=[np.e, np.e**3], prm_score=0.75, text="so 2")
    row = {"question": 7, "answer": 1, "samples": [first, second], "run": "r", "task": "t"}
    question = read(tmp_path / "log.jsonl", [row]).questions[0]
    assert (question.id, question.run, question.task) == ("7", "r", "t")
    assert question.tokens.tolist() == [10, 20]
    assert question.seconds is not None
    assert question.seconds.tolist() == [1.5, 2.5]
    assert question.logprobs is not None
    assert question.logprobs.tolist() == pytest.approx([-0.5, -2.0])
    assert question.rewards is not None
    assert question.rewards.tolist() == [0.25, 0.75]


def test_an_answer_is_extracted_from_a_text_that_has_none_beside_it(tmp_path: Path) -> None:
    row = {"id": "a", "target": "4", "samples": [{"text": "so \\boxed{4}"}, {"text": "I do not know"}]}
    assert read(tmp_path / "log.jsonl", [row]).questions[0].classes.tolist() == [0, -1]


def test_a_sample_a_line_may_have_probes(tmp_path: Path) -> None:
    def row(last: str) -> Row:
        probes = [{"tokens": 0, "answer": "B", "p": 0.25}, {"tokens": 50, "answer": last, "p": 0.9}]
        return {
            "run": "s",
            "task": "t",
            "id": "q",
            "target": "A",
            "answer": last,
            "output_tokens": 60,
            "probes": probes,
        }

    recording = read(tmp_path / "log.jsonl", [row("A"), row("C")])
    question = recording.questions[0]
    assert (question.run, question.num_samples, question.tokens.tolist()) == ("s", 2, [60, 60])
    assert question.correct.tolist() == [True, False]
    assert question.probes is not None
    first = question.probes[0]
    assert [probe.prefix.num_tokens for probe in first.probes] == [0, 50]
    assert [probe.confidence for probe in first.probes] == pytest.approx([0.25, 0.9])
    assert [probe.answer_class == question.target for probe in first.probes] == [False, True]
    assert first.forced.tolist() == [probe.answer_class for probe in first.probes]
    assert first.length == 60


def test_questions_on_several_lines_of_samples_are_counted(tmp_path: Path) -> None:
    rows = [{"id": each, "target": "1", "samples": [sample("1"), sample("2")]} for each in ("a", "a", "b", "b", "c")]
    recording = read(tmp_path / "log.jsonl", rows)
    assert recording.notes[0].startswith("2 questions are on several lines, whose samples are merged")
    assert (len(recording.questions), recording.num_samples) == (2, 4)
    runs = [{**row, "run": str(number)} for number, row in enumerate(rows)]
    assert read(tmp_path / "runs.jsonl", runs).notes == []


def test_looks_of_samples_share_their_classes(tmp_path: Path) -> None:
    looks = [{"position": 8, "answer": "2.0", "probability": 0.5, "hedged": True, "forced": "1", "answer_tokens": 3}]
    row = {"id": "a", "target": "2", "samples": [sample("2", output_tokens=9, probes=looks)]}
    question = read(tmp_path / "log.jsonl", [row]).questions[0]
    assert question.probes is not None
    look = question.probes[0]
    assert look.probes[0].answer_class == question.classes[0] == question.target
    assert look.probes[0].hedged
    assert look.forced[0] != question.target
    assert look.num_answer_tokens.tolist() == [3]


def test_questions_without_tokens_and_with_few_samples_are_left_out_and_counted(tmp_path: Path) -> None:
    with_tokens, without = sample("1", tokens=5), sample("1")
    rows = [
        {"id": "a", "target": "1", "samples": [with_tokens] * 3},
        {"id": "b", "target": "1", "samples": [with_tokens] * 4},
        {"id": "c", "target": "1", "samples": [with_tokens] * 3},
        {"id": "d", "target": "1", "samples": [without] * 3},
        {"id": "e", "target": "1", "samples": [with_tokens] * 2},
    ]
    recording = read(tmp_path / "log.jsonl", rows)
    assert [each.id for each in recording.questions] == ["a", "b", "c"]
    assert recording.num_samples == 3
    assert recording.left_out == [
        "samples after the first 3 of 1 questions, which have up to 4",
        "1 questions have fewer than 3 samples",
        "1 questions have no tokens",
    ]
    assert read(tmp_path / "log.jsonl", rows, num_samples=4).num_samples == 4
    with pytest.raises(DatasetError, match=r"no question has 5 samples; the maximum is 4"):
        read(tmp_path / "log.jsonl", rows, num_samples=5)


def test_a_task_chooses(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "run": run, "task": task, "samples": [sample("1")]} for run in "xy" for task in ("GPQA", "AIME")
    ]
    recording = read(tmp_path / "log.jsonl", rows, task="gpqa")
    assert [(each.run, each.task) for each in recording.questions] == [("x", "GPQA"), ("y", "GPQA")]
    with pytest.raises(DatasetError, match=r"the tasks are AIME, GPQA"):
        read(tmp_path / "log.jsonl", rows, task="math")


def test_logs_of_one_run_are_put_together(tmp_path: Path) -> None:
    row = {"id": "a", "run": "m", "target": "1", "samples": [sample("1")]}
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl.gz"]
    paths[0].write_text(json.dumps(row) + "\n")
    with gzip.open(paths[1], "wt") as file:
        file.write(json.dumps({**row, "samples": [sample("2")]}) + "\n")
    recording = read_recording(paths)
    assert recording.questions[0].classes.tolist() == [0, 1]
    assert recording.fingerprint != read_recording(paths[:1]).fingerprint


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"id": "a"}, "line 2: has no `samples`, but line 1 has"),
        ({"id": "a", "samples": []}, r"line 2: samples is '\[\]': list should have at least 1 item"),
        ({"samples": [{"answer": "1"}]}, "line 2: id"),
        ({"id": "a", "samples": [{"tokens": -1}]}, "line 2: samples.0.tokens is '-1': .*greater than or equal"),
        ({"id": "a", "samples": [{"reward": 2}]}, "line 2: samples.0.reward is '2': .*less than or equal to 1"),
        ({"id": "a", "samples": [{"answer": ["1"]}]}, "line 2: samples.0.answer is .*valid string"),
    ],
)
def test_a_wrong_row_is_named_by_file_line_and_field(tmp_path: Path, row: Row, told: str) -> None:
    good = {"id": "g", "samples": [sample("1")]}
    with pytest.raises(DatasetError, match=rf"log\.jsonl, {told}"):
        read(tmp_path / "log.jsonl", [good, row])


def test_what_is_no_log_is_refused_with_what_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "other.jsonl").write_text('{"problem": "1+1", "solution": "2"}\n')
    (tmp_path / "broken.jsonl").write_text('{"id": \n')
    with pytest.raises(DatasetError, match="unknown kind of file; give a run folder"):
        read_recording([tmp_path / "a.txt"])
    with pytest.raises(DatasetError, match="there is no such file"):
        read_recording([tmp_path / "gone.jsonl"])
    with pytest.raises(DatasetError, match=r"has no samples\.jsonl"):
        read_recording([tmp_path])
    with pytest.raises(DatasetError, match="is empty"):
        read_recording([tmp_path / "empty.jsonl"])
    with pytest.raises(DatasetError, match=r"line 1: has the fields problem, solution"):
        read_recording([tmp_path / "other.jsonl"])
    with pytest.raises(DatasetError, match=r"broken\.jsonl, line 1: "):
        read_recording([tmp_path / "broken.jsonl"])


def test_lm_eval_rows_keep_the_harness_score_of_one_response(tmp_path: Path) -> None:
    def row(name: str, filtered: str, score: float) -> Row:
        return {
            "doc_id": 3,
            "target": "so 6 * 3 = 18\n#### 18",
            "resps": [["It is 18 dollars."]],
            "filtered_resps": [filtered],
            "filter": name,
            "metrics": ["exact_match"],
            "exact_match": score,
        }

    rows = [row("strict-match", "[invalid]", 0.0), row("flexible-extract", "18", 1.0)]
    recording = read(tmp_path / "samples_gsm8k_2026-01-01T00-00-00.123.jsonl", rows)
    question = recording.questions[0]
    assert (question.id, question.task, question.run) == ("3", "gsm8k", tmp_path.name)
    assert (question.classes.tolist(), question.correct.tolist()) == ([0], [True])
    assert "tokens" in recording.missing


def test_lm_eval_repeats_are_samples_that_our_equality_grades(tmp_path: Path) -> None:
    texts = ["The answer is 18.", "The answer is 20.", "#### 18", "The answer is 18.0"]
    row = {"doc_id": 0, "target": "#### 18", "resps": [texts], "filtered_resps": ["18"], "filter": "maj@4"}
    question = read(tmp_path / "samples_gsm8k.jsonl", [row]).questions[0]
    assert question.num_samples == 4
    assert question.correct.tolist()[:2] == [True, False]
    assert question.correct[3]


def test_looks_say_how_long_a_sample_is_that_tells_no_tokens(tmp_path: Path) -> None:
    """Else a whole chain would cost one token beside its first cut of five hundred."""
    looks = [{"tokens": number, "answer": "1"} for number in (500, 1000)]
    recording = read(tmp_path / "log.jsonl", [{"id": "a", "target": "1", "samples": [sample("1", probes=looks)] * 2}])
    assert recording.questions[0].tokens.tolist() == [1000, 1000]
    assert "tokens" not in recording.missing


def test_a_log_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    row = {"id": "a", "target": "1", "samples": [sample("1"), sample("2")]}
    path = tmp_path / "log.jsonl"
    read(path, [row])
    with pytest.raises(DatasetError, match=r"is the same log as .*log\.jsonl, so its samples would count twice"):
        read_recording([path, tmp_path / ".." / tmp_path.name / "log.jsonl"])


def test_tokens_of_a_model_that_grades_are_not_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {name: SimpleNamespace(output_tokens=number) for name, number in (("mine", 70), ("judge", 900))}
    use_inspect(monkeypatch, [("4", "4", SimpleNamespace(value="C", answer="4"))], usage)
    path = tmp_path / "log.eval"
    path.write_text("an archive")
    assert read_recording([path]).questions[0].tokens.tolist() == [70]


def test_tokens_of_an_audit_are_not_the_samples(tmp_path: Path) -> None:
    counts = {"chain": (70, 9, 0), "audit": (900, 9, 0)}
    by_purpose = {name: TokenCounts(*each)._asdict() for name, each in counts.items()}
    job = EvaluationJob(Example("a", "2 + 2?", "4"), 0)
    record = dataclasses.replace(
        failed_record(job, ValueError()),
        error=None,
        answer="4",
        correct=True,
        ledger={"total": TokenCounts(970, 18, 0)._asdict(), "by_purpose": by_purpose, "num_unmetered_tasks": 0},
    )
    (tmp_path / "run").mkdir()
    with record_writer(tmp_path / "run" / "samples.jsonl") as write:
        write(record)
    assert read_recording([tmp_path / "run"]).questions[0].tokens.tolist() == [70]


def of_harness(**fields: Any) -> Row:
    return {"doc_id": 0, "target": "18", "filter": "none", "metrics": ["exact_match"], "exact_match": 1.0, **fields}


LONG = "First we add the eggs of all weeks. " * 5


@pytest.mark.parametrize(
    ("texts", "classes"),
    [
        ([LONG + "The answer is 18.", LONG + "\n#### 18", LONG + "\\boxed{7}"], [0, 0, 1]),
        (["I get it: the final answer is 18", LONG + "\\boxed{18.0}", LONG], [0, 0, -1]),
        (["18", " 18\n", "[invalid]"], [0, 0, -1]),
    ],
)
def test_lm_eval_files_of_one_response_each_are_read_as_texts(
    tmp_path: Path, texts: Sequence[str], classes: Sequence[int]
) -> None:
    """A task without a filter keeps the whole text in `filtered_resps`; the runs' files are merged."""
    paths = []
    for number, text in enumerate(texts):
        paths.append(tmp_path / f"samples_aime_2026-01-01T00-00-0{number}.jsonl")
        paths[-1].write_text(json.dumps(of_harness(resps=[[text]], filtered_resps=[text])))
    assert read_recording(paths).questions[0].classes.tolist() == classes


@pytest.mark.parametrize(
    ("resps", "metrics"),
    [
        ([[["-20.0", "False"]], [["-23.1", "True"]]], ["acc", "acc_norm"]),
        ([[["-3.5", "True"]]], ["perplexity", "acc"]),
        ([["-171.25"]], ["word_perplexity", "byte_perplexity", "bits_per_byte"]),
    ],
)
def test_lm_eval_rows_of_log_likelihoods_are_refused(
    tmp_path: Path, resps: Sequence[object], metrics: Sequence[str]
) -> None:
    row = of_harness(resps=resps, filtered_resps=resps[0], metrics=metrics, **dict.fromkeys(metrics, 1.0))
    with pytest.raises(DatasetError, match=r"line 1: has log-likelihoods, not generated texts"):
        read(tmp_path / "samples_arc.jsonl", [row])


@pytest.mark.parametrize(
    ("scores", "chosen", "correct"),
    [
        ({"exact_match": 0.0, "math_verify": 1.0}, "math_verify", True),
        ({"bleu": 31.0, "exact_match": 1.0}, "exact_match", True),
        ({"rouge1": 0.4, "acc": 0.0}, "acc", False),
    ],
)
def test_of_several_lm_eval_metrics_the_grading_one_is_taken_and_named(
    tmp_path: Path, scores: Mapping[str, float], chosen: str, correct: bool
) -> None:
    row = of_harness(resps=[["\\boxed{18}"]], filtered_resps=["\\boxed{18}"], metrics=[*scores])
    del row["exact_match"]  # type: ignore[attr-defined]
    recording = read(tmp_path / "samples_math.jsonl", [{**row, **scores}])
    assert recording.questions[0].correct.tolist() == [correct]
    assert [note for note in recording.notes if f"graded by `{chosen}`" in note]


@pytest.mark.parametrize(
    ("completion", "answer", "is_read"),
    [
        (LONG + "The answer is 18.", LONG + "The answer is 18.", True),  # `includes` keeps the completion
        (LONG + "\\boxed{18}", LONG + "\\boxed{18}", True),
        (LONG + "\\boxed{18}", None, True),
        (LONG + "\\boxed{7}", "18", True),  # `match` keeps what it read
        ("18", "18", True),
        (LONG, LONG, False),
        (LONG + "\\boxed{18}", LONG, True),  # the score keeps something else
        (f"<think>{LONG}\\boxed{{7}}</think>\n\n18", None, True),
        ("analysisPerhaps 7.assistantfinal18<|return|>", None, True),
        ("18<|im_end|>", "18<|im_end|>", True),
    ],
)
def test_an_inspect_score_that_keeps_the_completion_is_read_as_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, completion: str, answer: str | None, is_read: bool
) -> None:
    scores = SimpleNamespace(value="I", answer=answer), SimpleNamespace(value="C", answer="18")
    use_inspect(monkeypatch, [("18", completion, scores[0]), ("18", "18", scores[1])])
    (tmp_path / "log.eval").write_text("an archive")
    assert read_recording([tmp_path / "log.eval"]).questions[0].classes.tolist() == ([0, 0] if is_read else [-1, 0])


def use_inspect(
    monkeypatch: pytest.MonkeyPatch, samples: Sequence[tuple[str, str, Any]], usage: Mapping[str, Any] | None = None
) -> None:
    """Stand in for inspect_ai's reader with a log of one question."""
    given = [
        SimpleNamespace(
            id="a",
            target=target,
            epoch=epoch,
            error=None,
            total_time=1.0,
            model_usage=usage,
            scores={"own": score},
            output=SimpleNamespace(completion=completion),
        )
        for epoch, (target, completion, score) in enumerate(samples, 1)
    ]
    config = SimpleNamespace(model_dump=lambda exclude_none: {})
    log = SimpleNamespace(
        samples=given,
        eval=SimpleNamespace(model="mine", task="sums", model_generate_config=config),
        plan=SimpleNamespace(config=config),
    )
    reader, scorer = ModuleType("inspect_ai.log"), ModuleType("inspect_ai.scorer")
    monkeypatch.setattr(reader, "read_eval_log", lambda path: log, raising=False)
    monkeypatch.setattr(scorer, "value_to_float", lambda: lambda value: float(value == "C"), raising=False)
    for module in (ModuleType("inspect_ai"), reader, scorer):
        monkeypatch.setitem(sys.modules, module.__name__, module)


@pytest.mark.parametrize(
    ("samples", "classes"),
    [
        (["so \\boxed{4}", "The answer is 4.", "I doubt it. " * 20], [0, 0, -1]),
        (["4", "5", " 4 "], [0, 1, 0]),
        ([4, 4.0, "4"], [0, 0, 0]),
        (["4", {"answer": "4"}, {"text": "\\boxed{5}"}], [0, 0, 1]),
    ],
)
def test_samples_may_be_texts(tmp_path: Path, samples: Sequence[object], classes: Sequence[int]) -> None:
    row = {"id": "a", "target": "4", "samples": samples}
    assert read(tmp_path / "log.jsonl", [row]).questions[0].classes.tolist() == classes


@pytest.mark.parametrize(
    "rows",
    [
        [
            {"id": "a", "target": "4", "text": text}
            for text in ("\\boxed{4}", "The answer is 4", "\\boxed{4.0}", "\\boxed{5}")
        ],
        [{"id": "a", "target": "4", "answer": answer} for answer in ("4", "4.0", 4, "5")],
        [{"question": "a", "target": 4, "text": "well", "answer": answer} for answer in ("4", "4.0", 4, "5")],
    ],
)
def test_a_row_may_be_a_sample(tmp_path: Path, rows: Sequence[Row]) -> None:
    recording = read(tmp_path / "log.jsonl", [row | {"output_tokens": 7} for row in rows])
    (question,) = recording.questions
    assert (question.id, question.classes.tolist()) == ("a", [0, 0, 0, 1])
    assert (question.correct.tolist(), question.tokens.tolist()) == ([True, True, True, False], [7] * 4)
    assert recording.notes == []


def test_a_table_of_samples_is_read_like_rows(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = ('a,4,"so, \\boxed{4}",7,1.5', 'a,4,"It is\n\\boxed{5}",9,', "b,x,\\boxed{x},3,1", "b,x,,1,1")
    path.write_text("\n".join(("\ufeffid,target,text,output_tokens,seconds", *lines)))
    first, second = read_recording([path]).questions
    assert (first.classes.tolist(), first.tokens.tolist()) == ([0, 1], [7, 9])
    assert (second.classes.tolist(), second.correct.tolist()) == ([0, -1], [True, False])


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("id,samples\na,4\n", "line 2: samples is '4'"),
        ("id,target,text,output_tokens\na,4,x,many\n", "line 2: output_tokens is 'many'"),
        ("prompt,solution\na,4\n", "line 2: has the fields prompt, solution"),
        ("", "is empty"),
    ],
)
def test_a_wrong_table_is_named_by_file_line_and_field(tmp_path: Path, table: str, told: str) -> None:
    (tmp_path / "log.csv").write_text(table)
    with pytest.raises(DatasetError, match=rf"log\.csv.*{told}"):
        read_recording([tmp_path / "log.csv"])


def test_a_partly_right_answer_of_the_harness_is_wrong(tmp_path: Path) -> None:
    row = {"doc_id": 0, "target": "18", "filter": "none", "resps": ["17"], "filtered_resps": "17"}
    row |= {"metrics": ["f1"], "f1": 0.5}
    assert read(tmp_path / "samples_math.jsonl", [row]).questions[0].correct.tolist() == [False]
