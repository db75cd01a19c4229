"""Shared parts of error bars: input checks, grouping by question, resampling of whole questions."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext import require

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

_BLOCK_NUM_DRAWS = 2**19  # draws per block; bounds a block to some 10 MB
_GROUPING_GAIN = 40  # one multinomial count costs about as much as this many drawn and gathered rows


class Questions(NamedTuple):
    """Distinct question ids, sorted, shape [num_questions], and each sample's position there, shape [num_samples]."""

    ids: npt.NDArray[np.generic]
    question_of: Integers

    def totals(self, values: Floats) -> Floats:
        """Sum of the samples' values over each question, shape [num_questions]."""
        return np.bincount(self.question_of, weights=values).astype(np.float64)


def critical_value(confidence: float) -> float:
    """Standard normal quantile of a two-sided interval."""
    require.number("confidence", confidence, above=0, below=1)
    return -NormalDist().inv_cdf((1 - confidence) / 2)


def checked_values(name: str, values: npt.ArrayLike) -> Floats:
    """Return `values` as float64, shape [num_samples]; ValueError unless one-dimensional, finite and not empty."""
    array = np.asarray(values)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}; give a one-dimensional array with at least one entry.")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has dtype {array.dtype}; give booleans, integers or floats.")
    floats = array.astype(np.float64)
    finite = np.isfinite(floats)
    if not finite.all():
        first = int(np.argmin(finite))
        raise ValueError(f"{name}[{first}] is {floats[first]}; entries must be finite: repair or drop such samples.")
    return floats


def checked_pair(name_a: str, a: npt.ArrayLike, name_b: str, b: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return both arrays checked by `checked_values`; ValueError also if their lengths differ."""
    values_a, values_b = checked_values(name_a, a), checked_values(name_b, b)
    if len(values_a) != len(values_b):
        raise ValueError(
            f"{name_a} has {len(values_a)} entries and {name_b} {len(values_b)}; the comparison is paired, so "
            "give both one entry for each of the same samples, in the same order."
        )
    return values_a, values_b


def group_by_question(questions: npt.ArrayLike | None, num_samples: int) -> Questions:
    """Group samples by question id; None makes each sample its own question.

    Raises:
        ValueError: The shape is not [num_samples], the ids are neither integers nor strings, or fewer than 2 differ.
    """
    ids = np.arange(num_samples) if questions is None else np.asarray(questions)
    if ids.shape != (num_samples,):
        raise ValueError(f"questions has shape {ids.shape}; give one id for each of the {num_samples} samples.")
    if ids.dtype.kind == "O" and all(isinstance(one, str) for one in ids):
        ids = ids.astype(np.str_)  # a data frame's column of strings
    if ids.dtype.kind not in "biuSU":
        raise ValueError(f"questions has dtype {ids.dtype}; ids must be all integers or all strings.")
    distinct, question_of = np.unique(ids, return_inverse=True)
    if len(distinct) < 2:
        raise ValueError(
            f"all {num_samples} samples belong to one question, {distinct[0]}; an error bar needs at least 2."
        )
    return Questions(distinct, question_of.astype(np.int64))


def resampled_totals(rows: Floats, num_draws: int, num_resamples: int, rng: np.random.Generator) -> Floats:
    """Column totals of rows drawn uniformly with replacement.

    Memory is bounded by a block of draws, not by `num_resamples * num_draws`. If few rows are distinct (as for
    correctness), the count of each distinct row is drawn instead of single rows, which has the same distribution and is
    far faster. Many columns of many rows are summed by counting how often each row was drawn.

    Args:
        rows: One row per question, shape [num_questions, num_columns].
        num_draws: Rows in one resample.

    Returns:
        The totals, shape [num_resamples, num_columns].
    """
    distinct, num_equal = _distinct_rows(rows)
    count_groups = len(distinct) * _GROUPING_GAIN <= num_draws
    shares = num_equal / len(rows)
    columns = np.ascontiguousarray(rows.T)
    count_draws = len(columns) > 1 and len(rows) <= num_draws  # otherwise gathering touches less memory
    totals = np.empty((num_resamples, len(columns)))
    block_len = max(1, _BLOCK_NUM_DRAWS // (len(distinct) if count_groups else num_draws))
    for start in range(0, num_resamples, block_len):
        block = totals[start : start + block_len]
        if count_groups:
            block[:] = rng.multinomial(num_draws, shares, size=len(block)) @ distinct
            continue
        drawn = rng.integers(len(rows), size=(len(block), num_draws))
        if count_draws:
            drawn += len(rows) * np.arange(len(block))[:, None]  # a separate range for each resample
            counts = np.bincount(drawn.ravel(), minlength=len(block) * len(rows)).reshape(len(block), len(rows))
            block[:] = counts.astype(np.float64) @ rows
            continue
        for j, column in enumerate(columns):
            block[:, j] = column.take(drawn).sum(axis=1)
    return totals


def _distinct_rows(rows: Floats) -> tuple[Floats, Integers]:
    """The distinct rows and their counts, by sorting one number per row if that tells the rows apart."""
    marks = rows @ np.sqrt(np.arange(2, rows.shape[1] + 2))
    _, first, row_of, num_equal = np.unique(marks, return_index=True, return_inverse=True, return_counts=True)
    if np.array_equal(rows[first][row_of], rows):
        return rows[first], num_equal
    distinct, num_equal = np.unique(rows, axis=0, return_counts=True)
    return distinct, num_equal
