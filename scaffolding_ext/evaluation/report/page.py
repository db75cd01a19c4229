"""Render the report from its template in `templates/`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from scaffolding_ext.evaluation.compare.compared import Compared, PairedSample, Point
from scaffolding_ext.evaluation.compare.finished_run import FinishedRun
from scaffolding_ext.evaluation.drawing import COLOURS, charts_need, drawing, point
from scaffolding_ext.evaluation.report import terminal as tables
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.sections import SectionFigure
from scaffolding_ext.evaluation.tables import amount, between
from scaffolding_ext.evaluation.web_page import data_uri, render_page
from scaffolding_ext.stats.intervals import Estimate


def color_of(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def frontier_chart(points: Sequence[Point]) -> str:
    """Plot accuracy against decoded tokens, with both intervals."""
    image, baseline = io.BytesIO(), points[0]
    level = 100 * baseline.accuracy.value
    with drawing(image, figsize=(5.4, 3.5)) as (_, axes):
        axes.axhline(level, color="0.6", linestyle=":", lw=1)
        for number, each in enumerate(points):
            accuracy = Estimate(*(100 * value for value in each.accuracy))
            point(axes, each.tokens, accuracy, each.run, fmt="o", ms=6, color=color_of(number))
        axes.set(xlabel="decoded tokens a request", ylabel="accuracy, %")
    return data_uri(image.getvalue())


PURPOSE_COLORS = {
    "prompt": "#b8b8b8",
    "chain": "#4878a8",
    "probe": "#e8a33d",
    "score": "#6aa56e",
    "verify": "#9a7bb5",
    "discarded": "#c95d4f",
}


def rendered(compared: Compared, samples: Sequence[PairedSample]) -> str:
    runs = compared.runs
    needed = charts_need()
    rows = [_row(sample) for sample in samples]
    return render_page(
        "report.html",
        runs=[{"name": run.name, "color": color_of(number), "summary": run.summary} for number, run in enumerate(runs)],
        compared=compared,
        tables=tables,
        frontier=None if needed else frontier_chart(compared.points),
        charts_need=needed,
        purposes=_purposes(runs),
        sections=_sections(runs),
        reasons=sorted({cell["reason"] for row in rows for cell in row["cells"]}),
        num_samples=min((one.num_samples for one in compared.comparisons), default=len(samples)),
        overview={"runs": [{"name": run.name} for run in runs], "samples": rows},
        details=[_details(sample) for sample in samples],
        colors=PURPOSE_COLORS,
    )


def _purposes(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Return each run's decoded tokens per sample by purpose, and their widths in percent of the longest bar."""
    longest = max(float(run.columns["decoded"].mean()) for run in runs) or 1.0
    bars = []
    for run in runs:
        means = {purpose: counts["decoded"] for purpose, counts in run.summary.mean_tokens_by_purpose.items()}
        parts = [
            {"purpose": purpose, "mean": mean, "width": 100 * mean / longest} for purpose, mean in means.items() if mean
        ]
        bars.append({"name": run.name, "parts": parts, "total": sum(means.values())})
    return bars


def _sections(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
    """Return a table for each section, with a line for each figure: its name, and its value in each run."""
    found = []
    for section in dict.fromkeys(section for run in runs for section in run.summary.sections):
        own = {run.name: run.summary.sections[section] for run in runs if section in run.summary.sections}
        names = dict.fromkeys(name for figures in own.values() for name in figures)
        lines = [[name, *(_shown(figures.get(name)) for figures in own.values())] for name in names]
        found.append({"name": section, "runs": list(own), "lines": lines})
    return found


def _shown(figure: SectionFigure | None) -> str:
    if figure is None or (figure.value is None and not figure.counts):
        return "-"
    if figure.counts:
        return ", ".join(f"{which} {amount(num)} ({num / figure.num:.0%})" for which, num in figure.counts.items())
    ends = "" if figure.low is None or figure.high is None else between(figure.low, figure.high, ".4g")
    return f"{figure.value:.4g}{ends}" + (f" of {amount(figure.of)}" if figure.kind == "share" else "")


def _row(sample: PairedSample) -> dict[str, Any]:
    return {
        "id": sample.key.id,
        "epoch": sample.key.epoch,
        "target": sample.records[0].target,
        "cells": [
            {
                "answer": record.answer,
                "right": record.correct,
                "reason": f"failed: {record.error.type}" if record.error else record.exit_reason or "unknown",
                "decoded": record.ledger["total"]["decoded"],
                "seconds": record.seconds["total"],
            }
            for record in sample.records
        ],
    }


def _details(sample: PairedSample) -> dict[str, Any]:
    return {"prompt": sample.records[0].prompt, "runs": [_run_details(record) for record in sample.records]}


def _run_details(record: Record) -> dict[str, Any]:
    return {
        "output": record.output,
        "error": None if record.error is None else record.error.message,
        "tokens": record.ledger["by_purpose"],
    }
