"""Keeps beside intervals the columns that they are computed from: a value a question, and the figure's formula.

Whole questions are resampled, so that a question's total is all that an interval needs of its samples.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from scaffolding_ext.stats.intervals import Estimate, bootstrap_quotients, crossed, wilson_interval
from scaffolding_ext.stats.resampling import Floats, group_by_question

DIGITS = 6  # significant ones that a column keeps; figures are computed from what is kept
NONE = "-"
Origin = (
    str  # how a figure is computed: `share 31 100`, or an estimator and columns, `difference ours theirs samples 100`;
    # behind ` x ` the same again, of a second grouping
)


class Columns:
    """The columns of a report by name; equal ones are kept once.

    Args:
        packed: What `packed` gave.

    Attributes:
        kept: Numbers in one line of text, by name of the column.
    """

    def __init__(self, packed: str | None = None) -> None:
        self.kept: dict[str, str] = {}
        if packed:
            self.kept = json.loads(lzma.decompress(base64.b85decode(packed)))

    def packed(self) -> str:
        """All columns in one short text: JSON, compressed by LZMA, in base 85."""
        return base64.b85encode(lzma.compress(json.dumps(self.kept).encode(), preset=9)).decode()

    def keep(self, values: npt.ArrayLike) -> str:
        """Keep a column of numbers, shape [num_questions]; returns its name."""
        text = " ".join(f"{value:.{DIGITS}g}" for value in np.asarray(values, dtype=float))
        name = hashlib.sha256(text.encode()).hexdigest()[:8]
        self.kept[name] = text
        return name

    def keep_totals(self, values: npt.ArrayLike, questions: npt.ArrayLike | None) -> str:
        """Keep the totals of each question's samples; both have shape [num_samples]."""
        samples = np.asarray(values, dtype=float)
        return self.keep(group_by_question(questions, len(samples)).totals(samples))

    def __getitem__(self, name: str) -> Floats:
        return np.array(self.kept[name].split(), dtype=np.float64)

    def estimate(self, name: str, origin: Origin, seed: int) -> Estimate:
        """The figure of that name, computed from its columns; the same each time.

        Args:
            name: Of the figure: its resamples are drawn from the seed and the name.
            origin: How it is computed.
            seed: Of the report.
        """
        once, _, twice = origin.partition(" x ")
        found = self._resampled(name, once, seed)
        return crossed(found, self._resampled(name, twice, seed)) if twice else found

    def _resampled(self, name: str, origin: Origin, seed: int) -> Estimate:
        estimator, *parts = origin.split()
        if estimator == "share":
            num, total = map(int, parts)
            return Estimate(num / total, *wilson_interval(num, total))
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        ours = self[parts[0]]
        theirs = np.zeros_like(ours) if parts[1] == NONE else self[parts[1]]
        if estimator == "difference":
            samples = np.ones_like(ours) if parts[2] == NONE else self[parts[2]]
            found = _ratio(ours - theirs, samples, rng)
            return Estimate(*(float(parts[3]) * value for value in found))
        found = _ratio(ours, theirs, rng)
        if estimator == "ratio":
            return found
        return Estimate(1 - found.value, 1 - found.high, 1 - found.low)


def _ratio(a: Floats, b: Floats, rng: np.random.Generator) -> Estimate:
    (estimate,) = bootstrap_quotients(a[:, None], b[:, None], rng=rng)
    return estimate


def mismatches(document: Mapping[str, Any], every: int = 1) -> Iterator[str]:
    """The names of a result's figures that its columns do not give again; of every so many figures, one is computed."""
    columns = Columns(document.get("columns"))
    figures = {name: figure for name, figure in document.get("figures", {}).items() if "of" in figure}
    for name in list(figures)[::every]:
        found = columns.estimate(name, figures[name]["of"], document["setting"]["seed"])
        if not np.allclose(found, [figures[name][end] for end in Estimate._fields], rtol=1e-6, atol=1e-9):
            yield name
