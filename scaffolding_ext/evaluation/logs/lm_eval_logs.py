"""Read `samples_*.jsonl` of lm-evaluation-harness (`--log_samples`); the repeats of a document are its samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from scaffolding_ext.answers import extract
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.logs.samples import LoggedQuestion, LoggedSample
from scaffolding_ext.evaluation.run.jsonl import Row

FIELDS = {"doc_id", "resps", "target"}  # a row of such a file has them


def read_lm_eval(rows: Iterable[Row], name: str, run: str, task: str) -> list[LoggedQuestion]:
    """Read the questions of a file, which has no token counts.

    A document with one response has the answer and the score of the harness. If it has several, the harness keeps only
    one score, so each response is graded by our equality. If a task has several filters, the rows of the filter
    "flexible-extract" are taken, or else those of the first.

    Raises:
        DatasetError: A row lacks a field.
    """
    every = list(rows)
    for row in every:
        lacking = sorted(FIELDS - row.value.keys())
        if lacking:
            problem = row.problem or f"has no {', '.join(lacking)}"
            raise DatasetError(f"{name}, line {row.number}: {problem}; a row of lm-evaluation-harness has them")
    filters = list(dict.fromkeys(row.value.get("filter") for row in every))
    chosen = "flexible-extract" if "flexible-extract" in filters else filters[0] if filters else None
    found = [row.value for row in every if row.value.get("filter") == chosen]
    return [
        LoggedQuestion(str(row["doc_id"]), _target(row["target"]), _samples(row), run, task)
        for row in sorted(found, key=lambda row: row["doc_id"])
    ]


def _samples(row: Mapping[str, Any]) -> list[LoggedSample]:
    responses = row["resps"][0] if row["resps"] and isinstance(row["resps"][0], list) else row["resps"]
    if len(responses) > 1:
        return [LoggedSample(extract(text)) for text in map(str, responses)]
    text = str(responses[0])
    filtered = row.get("filtered_resps") or [text]
    read = filtered[0][0] if isinstance(filtered[0], list) else filtered[0]
    scores = [row[metric] for metric in row.get("metrics") or () if isinstance(row.get(metric), int | float)]
    return [LoggedSample(str(read), scores[0] == 1 if scores else None)]


def _target(target: object) -> str:
    return str(target).rsplit("####", 1)[-1].strip()
