"""Runs of a stack on problems, with their records and seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import click

from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.host.llm import ScaffoldingLlm

TEMPERATURE = 0.7
MAX_TOKENS = 1200


class Run(NamedTuple):
    """One method on all problems.

    Attributes:
        records: In the order of the problems.
        seconds: Wall-clock time of the whole run.
    """

    records: list[Record]
    seconds: float

    @property
    def correct(self) -> list[float]:
        return [float(bool(record.correct)) for record in self.records]

    def tokens(self, *kinds: str) -> list[int]:
        """Tokens of each problem that are of one of the kinds, such as `"decoded"`."""
        return [sum(record.ledger["total"][kind] for kind in kinds) for record in self.records]


def timed_run(
    llm: ScaffoldingLlm, samples: Sequence[Example], on_record: Callable[[Record], object] | None = None
) -> Run:
    """Run the samples on a host.

    Raises:
        click.ClickException: A sample failed.
    """
    started = time.perf_counter()
    records = evaluate(llm, samples, on_record=on_record)
    seconds = time.perf_counter() - started
    failed = [record.error for record in records if record.error is not None]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(samples)} samples failed; the first: {failed[0]}")
    return Run(records, seconds)
