"""Read details of lighteval (`--save-details`, parquet); the texts of a document are its samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaffolding_ext.errors import DatasetError, MissingDependencyError
from scaffolding_ext.evaluation.logs.samples import LoggedQuestion, LoggedSample
from scaffolding_ext.evaluation.logs.stated import stated


def read_lighteval(path: Path) -> list[LoggedQuestion]:
    """Read the questions of one file; each text is graded by our equality.

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
    return [_question(row["doc"], row["model_response"], path.parent.parent.name) for row in rows]


def _question(doc: Mapping[str, Any], response: Mapping[str, Any], run: str) -> LoggedQuestion:
    texts = response.get("text_post_processed") or response["text"]
    lengths = [len(ids) for ids in response.get("output_tokens") or ()]
    tokens: list[int | None] = [*lengths] if len(lengths) == len(texts) and all(lengths) else [None] * len(texts)
    gold = doc["gold_index"]
    index = gold[0] if isinstance(gold, list) else gold
    samples = [LoggedSample(stated(text), None, number) for text, number in zip(texts, tokens, strict=True)]
    return LoggedQuestion(str(doc["id"]), str(doc["choices"][index]).strip(), samples, run, str(doc["task_name"]))
