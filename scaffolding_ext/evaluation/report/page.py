"""Renders the report: figures and charts here, the page in `templates/`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from scaffolding_ext.documents import write_text
from scaffolding_ext.evaluation.compare.compared import Compared, PairedSample
from scaffolding_ext.evaluation.compare.finished_run import UNKNOWN, FinishedRun
from scaffolding_ext.evaluation.compare.paired import Point
from scaffolding_ext.evaluation.compare.sweeps import Sweep
from scaffolding_ext.evaluation.report import terminal as tables
from scaffolding_ext.evaluation.report.timeline import lanes_of, steps_of, trees_of
from scaffolding_ext.evaluation.run.records import Record
from scaffolding_ext.evaluation.run.tally import Column
from scaffolding_ext.evaluation.web_page import render_page

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#5c4b9b", "#444444")
_WIDTH, _HEIGHT = 400, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 12, 10, 38
_NUM_BINS = 40


def color_of(number: int) -> str:
    return COLORS[number % len(COLORS)]


def frontier_chart(points: Sequence[Point], sweeps: Sequence[Sweep]) -> Markup:
    """Accuracy against decoded tokens: each run with both intervals, sweeps as dashed lines, and where a sweep reaches
    the accuracy of the baseline, a hollow diamond."""
    tokens = _Axis(0.0, max(point.tokens.high for point in points), _LEFT, _WIDTH - _RIGHT)
    levels = [100 * value for point in points for value in (point.accuracy.low, point.accuracy.high)]
    accuracy = _Axis(min(levels), max(levels), _HEIGHT - _BOTTOM, _TOP)
    parts = [_axes(tokens, accuracy, "decoded tokens a sample", "accuracy, %")]
    baseline = points[0]
    level = accuracy(100 * baseline.accuracy.value)
    parts.append(_line(_LEFT, level, _WIDTH - _RIGHT, level, "#999", "2 3"))
    for sweep in sweeps:
        places = [(tokens(point.tokens.value), accuracy(100 * point.accuracy.value)) for point, _ in sweep.runs]
        parts += [_line(*one, *other, "#777", "5 4") for one, other in pairwise(places)]
        if sweep.saving.saved is not None:
            x = tokens((1 - sweep.saving.saved.value) * baseline.tokens.value)
            parts.append(f'<path d="M{x:.1f} {level - 6:.1f}l6 6l-6 6l-6 -6z" fill="white" stroke="#333"/>')
    for number, point in enumerate(points):
        color = color_of(number)
        x, y = tokens(point.tokens.value), accuracy(100 * point.accuracy.value)
        parts.append(_line(tokens(point.tokens.low), y, tokens(point.tokens.high), y, color))
        parts.append(_line(x, accuracy(100 * point.accuracy.low), x, accuracy(100 * point.accuracy.high), color))
        title = f"<title>{escape(point.run)}</title>"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{color}">{title}</circle>')
    return _svg(parts, _HEIGHT, "Accuracy against decoded tokens")


def distribution_chart(values: Column, largest: float, color: str) -> Markup:
    """How many samples took how many decoded tokens, with a line at the median."""
    height = 110
    tokens = _Axis(0.0, largest, _LEFT, _WIDTH - _RIGHT)
    counts, edges = np.histogram(values, bins=_NUM_BINS, range=(0.0, tokens.high))
    samples = _Axis(0.0, float(counts.max()), height - _BOTTOM, _TOP)
    parts = [_axes(tokens, samples, "decoded tokens", "samples", height)]
    for count, (low, high) in zip(counts, pairwise(edges), strict=True):
        top = samples(float(count))
        parts.append(
            f'<rect x="{tokens(low):.1f}" y="{top:.1f}" width="{tokens(high) - tokens(low):.2f}" '
            f'height="{samples(0.0) - top:.1f}" fill="{color}"/>'
        )
    median = tokens(float(np.median(values)))
    parts.append(_line(median, _TOP, median, height - _BOTTOM, "#111", "3 2"))
    return _svg(parts, height, "Distribution of decoded tokens")


class _Axis:
    """Maps figures to a place, over a range of round numbers about them."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.step = _round_step((high - low) or 1.0)
        self.low = math.floor(low / self.step) * self.step
        self.high = max(math.ceil(high / self.step), math.floor(low / self.step) + 1) * self.step
        self.start, self.end = start, end

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[float]:
        return [self.low + number * self.step for number in range(round((self.high - self.low) / self.step) + 1)]


def _round_step(extent: float) -> float:
    """1, 2 or 5 times a power of ten, so that some four of them make the extent."""
    rough = extent / 4
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)


def _axes(horizontal: _Axis, vertical: _Axis, below: str, beside: str, height: int = _HEIGHT) -> str:
    parts = []
    bottom, right = height - _BOTTOM, _WIDTH - _RIGHT
    for tick in vertical.ticks():
        y = vertical(tick)
        parts.append(_line(_LEFT, y, right, y, "#e4e4e4"))
        parts.append(f'<text x="{_LEFT - 5}" y="{y + 3.5:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in horizontal.ticks():
        x = horizontal(tick)
        anchor = "end" if x > right - 8 else "middle"
        parts.append(_line(x, bottom, x, bottom + 3, "#777"))
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="{anchor}">{tick:g}</text>')
    parts.append(_line(_LEFT, bottom, right, bottom, "#777"))
    parts.append(f'<text x="{right}" y="{height - 6}" text-anchor="end" class="what">{escape(below)}</text>')
    parts.append(f'<text x="2" y="{height - 6}" class="what">{escape(beside)} ↑</text>')
    return "".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float, color: str, dashes: str = "") -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="{color}" fill="none"{dashed}/>'


def _svg(parts: Sequence[str], height: int, label: str) -> Markup:
    return Markup(
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


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


def _purposes(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
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


def _sections(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
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


def _distributions(runs: Sequence[FinishedRun]) -> list[dict[str, Any]]:
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
