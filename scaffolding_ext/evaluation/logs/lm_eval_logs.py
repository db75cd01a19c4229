"""Read `samples_*.jsonl` of lm-evaluation-harness (`--log_samples`); the repeats of a document are its samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.logs.samples import Log, LoggedQuestion, LoggedSample
from scaffolding_ext.evaluation.logs.stated import read_results, sampling_of, stated
from scaffolding_ext.evaluation.run.jsonl import Row

FIELDS = {"doc_id", "resps", "target"}  # a row of such a file has them
_GRADING = ("math_verify", "exact_match", "acc")  # metrics of one answer, the most lenient reader of mathematics first
_PERPLEXITIES = {"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte"}
_NOTHING = "[invalid]"  # written by a filter that found no answer


def read_lm_eval(rows: Iterable[Row], name: str, fingerprint: str, run: str, task: str) -> Log:
    """Read a file, which has no token counts. The model is that of the run's results file.

    A document with one response has the answer and the score of the harness. If it has several, the harness keeps only
    one score, so each response is graded by our equality. If a task has several filters, the rows of the filter
    "flexible-extract" are taken, or else those of the first; of several metrics, the one of `_GRADING`.

    Raises:
        DatasetError: A row lacks a field, or has log-likelihoods instead of texts.
    """
    every = list(rows)
    for row in every:
        lacking = sorted(FIELDS - row.value.keys())
        if lacking:
            problem = row.problem or f"has no {', '.join(lacking)}"
            raise DatasetError(f"{name}, line {row.number}: {problem}; a row of lm-evaluation-harness has them")
        targets, responses = row.value["target"], _responses(row.value)
        if isinstance(targets, list) and len(set(map(str, targets))) > 1 and len(responses) > 1:
            raise DatasetError(
                f"{name}, line {row.number}: has {len(targets)} targets and several responses, which the harness does "
                "not grade; a recording has one target a question: keep one"
            )
        if not _is_generated(row.value):
            raise DatasetError(
                f"{name}, line {row.number}: has log-likelihoods, not generated texts; they are the same in each run, "
                "so no rule can save samples: log a task with output_type generate_until"
            )
    filters = list(dict.fromkeys(row.value.get("filter") for row in every))
    chosen = "flexible-extract" if "flexible-extract" in filters else filters[0] if filters else None
    found = [row.value for row in every if row.value.get("filter") == chosen]
    metrics = list(dict.fromkeys(each for row in found for each in _metrics(row)))
    metric = next((each for each in (*_GRADING, *metrics) if each in metrics), None)
    questions = [
        LoggedQuestion(str(row["doc_id"]), _target(row["target"]), _samples(row, metric), run, task)
        for row in sorted(found, key=lambda row: row["doc_id"])
    ]
    others = [f"`{each}`" for each in metrics if each != metric]
    note = f"{task or name}: graded by `{metric}`, not by {', '.join(others)}." if others else None
    model, model_args = _configured(Path(name))
    sampling = sampling_of(model_args, _generation_arguments(found[0]) if found else {})
    return Log(name, fingerprint, questions, model, sampling, note=note)


def _configured(path: Path) -> tuple[str | None, Mapping[str, Any]]:
    """Return model and model arguments, which `results_DATE.json` has beside the file."""
    date = path.name.rpartition("_")[2].removesuffix(".jsonl")
    found = read_results(path.with_name(f"results_{date}.json"))
    given = (found.get("config") or {}).get("model_args") or {}
    name = found.get("model_name")
    model = name if name and name in str(given) else None  # a model without a name has a random one
    if isinstance(given, str):
        pairs = (each.partition("=") for each in given.split(","))
        given = {name: int(value) if value.isdecimal() else None for name, _, value in pairs}
    return model, given


def _generation_arguments(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request's arguments: of `{"gen_args_0": {"arg_0": prompt, "arg_1": ARGUMENTS}}`, or of lists."""
    requests = row.get("arguments") or [[]]
    first = next(iter(requests.values())) if isinstance(requests, Mapping) else requests[0]
    parts = first.values() if isinstance(first, Mapping) else first
    return next((each for each in parts if isinstance(each, Mapping)), {})


def _metrics(row: Mapping[str, Any]) -> list[str]:
    return [each for each in row.get("metrics") or () if isinstance(row.get(each), int | float)]


def _responses(row: Mapping[str, Any]) -> Sequence[Any]:
    return row["resps"][0] if row["resps"] and isinstance(row["resps"][0], list) else row["resps"]


def _is_generated(row: Mapping[str, Any]) -> bool:
    is_text = all(isinstance(each, str | None) for each in _responses(row))
    return is_text and _PERPLEXITIES.isdisjoint(row.get("metrics") or ())


def _samples(row: Mapping[str, Any], metric: str | None) -> list[LoggedSample]:
    responses = _responses(row)
    if len(responses) > 1:
        return [LoggedSample(None if text is None else stated(text)) for text in responses]
    filtered = row.get("filtered_resps") or responses
    read = filtered[0][0] if isinstance(filtered[0], list) else filtered[0]
    score = None if metric is None else row.get(metric)
    answer = None if read is None or read == _NOTHING else stated(str(read))
    return [LoggedSample(answer, None if score is None else score == 1)]


def _target(target: object) -> str:
    first = target[0] if isinstance(target, list) and target else target
    return str(first).rsplit("####", 1)[-1].strip()
