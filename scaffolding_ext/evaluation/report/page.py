"""Renders the report: figures and charts here, the page in `templates/`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from scaffolding_ext.documents import write_text
from scaffolding_ext.evaluation.compare.compared import Compared, PairedSample
from scaffolding_ext.evaluation.compare.finished_run import UNKNOWN, Run
from scaffolding_ext.evaluation.report import terminal as tables
from scaffolding_ext.evaluation.report.charts import color_of, distribution_chart, frontier_chart
from scaffolding_ext.evaluation.report.timeline import lanes_of, steps_of, trees_of
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.web_page import render_page

PURPOSE_COLORS = {
    "prompt": "#b8b8b8",
    "chain": "#4878a8",
    "probe": "#e8a33d",
    "score": "#6aa56e",
    "verify": "#9a7bb5",
    "discarded": "#c95d4f",
}


def write_report(path: str | os.PathLike[str], compared: Compared, samples: Sequence[PairedSample]) -> None:
    """Write the page.

    Args:
        path: The file.
        compared: What it shows.
        samples: What can be looked at one by one.

    Raises:
        OutputError: It cannot be written.
    """
    write_text(path, rendered(compared, samples))


def rendered(compared: Compared, samples: Sequence[PairedSample]) -> str:
    """The page's text."""
    runs = compared.runs
    reasons = [tables.exit_shares(run) for run in runs]
    return render_page(
        "report.html",
        runs=[{"name": run.name, "color": color_of(number), "summary": run.summary} for number, run in enumerate(runs)],
        compared=compared,
        tables=tables,
        frontier=frontier_chart(compared.points, compared.sweeps),
        purposes=_purposes(runs),
        purpose_colors=PURPOSE_COLORS,
        distributions=_distributions(runs),
        sections=_sections(runs),
        reasons=list(dict.fromkeys(reason for own in reasons for reason in own)),
        shares=reasons,
        num_samples=min((one.num_samples for one in compared.comparisons), default=len(samples)),
        overview={"runs": [{"name": run.name} for run in runs], "samples": [_row(sample) for sample in samples]},
        details=[_details(sample) for sample in samples],
        colors=PURPOSE_COLORS,
    )


def _purposes(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Of each run, its decoded tokens a sample by purpose, and their widths in per cent of the longest bar."""
    longest = max(float(run.columns["decoded"].mean()) for run in runs) or 1.0
    bars = []
    for run in runs:
        means = {purpose: counts["decoded"] for purpose, counts in run.summary.mean_tokens_by_purpose.items()}
        parts = [
            {"purpose": purpose, "mean": mean, "width": 100 * mean / longest} for purpose, mean in means.items() if mean
        ]
        bars.append({"name": run.name, "parts": parts, "total": sum(means.values())})
    return bars


def _sections(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What controllers published, section by section, with the runs that have it."""
    names = dict.fromkeys(section for run in runs for section in run.summary.sections)
    those = {name: [run for run in runs if name in run.summary.sections] for name in names}
    return [
        {
            "name": name,
            "runs": [run.name for run in found],
            "lines": tables.section_lines([run.summary.sections[name] for run in found]),
        }
        for name, found in those.items()
    ]


def _distributions(runs: Sequence[Run]) -> list[dict[str, Any]]:
    largest = max(float(run.columns["decoded"].max()) for run in runs)
    return [
        {
            "name": run.name,
            "chart": distribution_chart(run.columns["decoded"], largest, color_of(number)),
            "median": float(np.median(run.columns["decoded"])),
            "most": float(run.columns["decoded"].max()),
        }
        for number, run in enumerate(runs)
    ]


def _row(sample: PairedSample) -> dict[str, Any]:
    """What the table of samples shows and sorts by."""
    return {
        "id": sample.key.id,
        "epoch": sample.key.epoch,
        "target": sample.records[0].target,
        "cells": [
            {
                "answer": record.answer,
                "right": record.correct,
                "reason": f"failed: {record.error.type}" if record.error else record.exit_reason or UNKNOWN,
                "decoded": record.ledger["total"]["decoded"],
                "seconds": record.seconds["total"],
            }
            for record in sample.records
        ],
    }


def _details(sample: PairedSample) -> dict[str, Any]:
    """What the page of one sample shows beyond its row."""
    return {"prompt": sample.records[0].prompt, "runs": [_run_details(record) for record in sample.records]}


def _run_details(record: Record) -> dict[str, Any]:
    steps = steps_of(record)
    return {
        "output": record.output,
        "error": None if record.error is None else record.error.message,
        "tokens": record.ledger["by_purpose"],
        "lanes": lanes_of(steps),
        "steps": steps,
        "trees": trees_of(steps),
    }
