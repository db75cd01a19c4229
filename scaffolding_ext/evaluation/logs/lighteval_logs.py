"""Read details of lighteval (`--save-details`, parquet); the texts of a document are its samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaffolding_ext.errors import DatasetError, MissingDependencyError
from scaffolding_ext.evaluation.logs.samples import Log, LoggedQuestion, LoggedSample
from scaffolding_ext.evaluation.logs.stated import read_results, sampling_of, stated


def read_lighteval(path: Path, fingerprint: str) -> Log:
    """Read one file; each text is graded by our equality. Model and sampling are those of the run's results file.

    Raises:
        MissingDependencyError: pyarrow is not installed.
        DatasetError: The file cannot be read, or lacks the columns of lighteval 0.10 and newer.
    """
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "problems") from error
    try:
        table = read_table(path)
    except (OSError, ArrowException) as error:
        raise DatasetError(f"{path}: cannot be read as parquet: {error}") from error
    if not {"doc", "model_response"} <= set(table.column_names):
        raise DatasetError(
            f"{path}: has the columns {', '.join(table.column_names)}; the details of lighteval 0.10 and newer have "
            "doc, model_response and metric"
        )
    rows = table.select(["doc", "model_response"]).to_pylist()
    questions = [_question(row["doc"], row["model_response"], path) for row in rows]
    model, parameters = _configured(path)
    doc = rows[0]["doc"] if rows else {}
    of_task = {"max_tokens": doc.get("generation_size"), "stop": doc.get("stop_sequences")}
    return Log(str(path), fingerprint, questions, model, sampling_of(of_task, parameters))


def _configured(path: Path) -> tuple[str | None, Mapping[str, Any]]:
    """Return model and generation parameters, which `results/MODEL/results_DATE.json` has beside `details`."""
    model, root = path.parent.parent, path.parent.parent
    while root.name and root.name != "details":
        root = root.parent
    if not root.name:
        return None, {}
    file = root.parent / "results" / model.relative_to(root) / f"results_{path.parent.name}.json"
    general = read_results(file).get("config_general") or {}
    config = general.get("model_config") or general
    name = str(general.get("model_name") or config.get("model_name") or "")
    if not name.startswith("/"):
        name = "/".join(name.split("/")[-2:])  # LiteLLM's names begin with a provider
    return name or None, config.get("generation_parameters") or {}


def _question(doc: Mapping[str, Any], response: Mapping[str, Any], path: Path) -> LoggedQuestion:
    texts = response.get("text_post_processed") or response["text"]
    lengths = [len(ids) for ids in response.get("output_tokens") or ()]
    tokens: list[int | None] = [*lengths] if len(lengths) == len(texts) and all(lengths) else [None] * len(texts)
    gold = doc["gold_index"] if isinstance(doc["gold_index"], list) else [doc["gold_index"]]
    targets = list(dict.fromkeys(str(doc["choices"][index]).strip() for index in gold))
    if len(targets) > 1:
        raise DatasetError(
            f"{path}: the document {doc['id']!r} has {len(targets)} right answers; a recording has one target a "
            "question"
        )
    answers = [None if text is None else stated(text) for text in texts]
    samples = [LoggedSample(answer, None, number) for answer, number in zip(answers, tokens, strict=True)]
    return LoggedQuestion(str(doc["id"]), targets[0], samples, path.parent.parent.name, str(doc["task_name"]))
