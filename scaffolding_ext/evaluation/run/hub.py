"""Datasets of Hugging Face by their name; they are loaded by its own library."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from scaffolding_ext.errors import DatasetError, MissingDependencyError
from scaffolding_ext.evaluation.run.jsonl import Row


class HubDataset(NamedTuple):
    """Where a known dataset has its problems, and how it writes them."""

    format: str
    split: str
    subset: str | None = None


HUB_DATASETS = {
    "HuggingFaceH4/MATH-500": HubDataset("math500", "test"),
    "HuggingFaceH4/aime_2024": HubDataset("aime", "train"),
    "AI-MO/aimo-validation-aime": HubDataset("aime", "train"),
    "AI-MO/aimo-validation-amc": HubDataset("amc", "train"),
    "openai/gsm8k": HubDataset("gsm8k", "test", "main"),
}
_DEFAULT_SPLIT = "test"


def read_hub(name: str, subset: str | None = None, split: str | None = None) -> Iterator[Row]:
    """The rows of a dataset.

    Args:
        name: As in `datasets.load_dataset`: a dataset of Hugging Face, or a folder with files that its library reads.
        subset: One of its configurations; None takes that of a known dataset, else the default.
        split: One of its splits; None takes that of a known dataset, else `test`.

    Raises:
        DatasetError: It cannot be loaded: it is unknown, or cannot be reached.
        MissingDependencyError: `datasets` is not installed.
    """
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError("datasets", "problems") from error
    known = HUB_DATASETS.get(name, HubDataset("", _DEFAULT_SPLIT))
    try:
        loaded = datasets.load_dataset(name, subset or known.subset, split=split or known.split)
    except Exception as error:  # of any type: what the network, the hub and its readers raise
        raise DatasetError(
            f"cannot load the dataset {name} from Hugging Face: {type(error).__name__}: {error}; where the hub cannot "
            "be reached, name a JSONL file, or a folder as hf:FOLDER"
        ) from error
    return (Row(number, dict(value), None, True) for number, value in enumerate(loaded, 1))
